"""Models of Hugging Face and ours."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from parts import BLOCK, HEADS, LAYERS, VOCAB, WIDTH, Patient, initialise, patient
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from traindoctor.lm.config import ModelConfig
from traindoctor.lm.model import Transformer

HIDDEN = 96


def their_loss(model: Any, batch: Any) -> Tensor:
    logits = model(batch["tokens"], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def ready(model: Any, **settings: Any) -> Patient:
    initialise(model)
    return patient(model, **settings)


def gpt2() -> Patient:
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=BLOCK,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return ready(GPT2LMHeadModel(config), loss=their_loss)


def our_gpt2() -> Patient:
    config = ModelConfig(
        layers=LAYERS,
        heads=HEADS,
        width=WIDTH,
        block=BLOCK,
        norm="layer",
        positions="learned",
        mlp="gelu-tanh",
        tied=True,
        bias=True,
    )
    return ready(Transformer(config, VOCAB))


def _llama(tied: bool) -> Patient:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=BLOCK,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    return ready(LlamaForCausalLM(config), loss=their_loss)


def _our_llama(tied: bool) -> Patient:
    config = ModelConfig(
        layers=LAYERS,
        heads=HEADS,
        kv_heads=HEADS // 2,
        width=WIDTH,
        hidden=HIDDEN,
        block=BLOCK,
        tied=tied,
    )
    return ready(Transformer(config, VOCAB))


def llama() -> Patient:
    return _llama(False)


def our_llama() -> Patient:
    return _our_llama(False)


def tied_llama() -> Patient:
    return _llama(True)


def our_tied_llama() -> Patient:
    return _our_llama(True)
