"""A run as a folder that transformers loads: GPT-2 or Llama layout, whichever has the same parts."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from traindoctor.errors import ConfigError
from traindoctor.lm.checkpoint import load_run
from traindoctor.lm.config import ModelConfig
from traindoctor.lm.files import new_folder, write_json
from traindoctor.lm.model import NORM_EPS, ROTARY_BASE, Transformer


def export_hf(run: Path, out: Path, *, which: str = "best", overwrite: bool = False) -> str:
    """Writes config.json, model.safetensors and the tokenizer; gives back the name of the layout."""
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} already exists: give another -o, or --overwrite")
    if out.is_file():
        raise ConfigError(f"{out} is a file: -o names a folder")
    model, tokenizer, config = load_run(run, which=which)
    layout = layout_of(config.model)
    tensors = gpt2_tensors(model) if layout == "gpt2" else llama_tensors(model)
    settings = gpt2_config(model) if layout == "gpt2" else llama_config(model)
    with new_folder(out) as inside:
        save_file(tensors, inside / "model.safetensors", metadata={"format": "pt"})
        write_json(inside / "config.json", settings)
        write_json(inside / "generation_config.json", {"do_sample": True, "temperature": 0.8})
        shutil.copy(run / "tokenizer.json", inside / "tokenizer.json")
        write_json(
            inside / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": config.model.block,
                "clean_up_tokenization_spaces": False,
                **({"unk_token": "<unk>"} if tokenizer.kind == "word" else {}),
            },
        )
    return layout


def layout_of(config: ModelConfig) -> str:
    """gpt2: LayerNorm, learned positions, GELU; llama: RMSNorm, rotary positions, SwiGLU."""
    parts = (config.norm, config.positions, config.mlp.removesuffix("-tanh"))
    if parts == ("layer", "learned", "gelu") and config.num_kv_heads == config.heads:
        return "gpt2"
    if parts == ("rms", "rotary", "swiglu"):
        return "llama"
    raise ConfigError(
        f"transformers has no layout with norm={config.norm}, positions={config.positions}, mlp={config.mlp}, "
        f"kv_heads={config.num_kv_heads}: it loads layer + learned + gelu with all heads (GPT-2) "
        "or rms + rotary + swiglu (Llama)"
    )


def gpt2_tensors(model: Transformer) -> dict[str, Tensor]:
    """GPT-2 keeps its matrices as (in, out), and always has biases: absent ones are zeros."""
    stored = dict(model.named_parameters())

    def both(ours: str, theirs: str, *, transpose: bool) -> dict[str, Tensor]:
        weight = stored[f"{ours}.weight"].detach()
        bias = stored.get(f"{ours}.bias")
        zeros = torch.zeros(weight.shape[0])
        return {
            f"{theirs}.weight": weight.T.contiguous() if transpose else weight.contiguous(),
            f"{theirs}.bias": zeros if bias is None else bias.detach().contiguous(),
        }

    tensors = {
        "transformer.wte.weight": stored["embedding.weight"].detach().contiguous(),
        "transformer.wpe.weight": stored["positions.weight"].detach().contiguous(),
        **both("norm", "transformer.ln_f", transpose=False),
    }
    for l in range(model.config.layers):
        here, there = f"blocks.{l}", f"transformer.h.{l}"
        tensors |= both(f"{here}.attention_norm", f"{there}.ln_1", transpose=False)
        tensors |= both(f"{here}.attention.qkv", f"{there}.attn.c_attn", transpose=True)
        tensors |= both(f"{here}.attention.out", f"{there}.attn.c_proj", transpose=True)
        tensors |= both(f"{here}.mlp_norm", f"{there}.ln_2", transpose=False)
        tensors |= both(f"{here}.mlp.up", f"{there}.mlp.c_fc", transpose=True)
        tensors |= both(f"{here}.mlp.down", f"{there}.mlp.c_proj", transpose=True)
    if not model.config.tied:
        tensors["lm_head.weight"] = stored["head.weight"].detach().contiguous()
    return tensors


def gpt2_config(model: Transformer) -> dict[str, Any]:
    config = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu" if config.mlp == "gelu" else "gelu_pytorch_tanh",
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.hidden_size,
        "n_layer": config.layers,
        "n_positions": config.block,
        "layer_norm_epsilon": NORM_EPS,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout),
        "bos_token_id": None,
        "eos_token_id": None,
        **_common(model),
    }


def llama_tensors(model: Transformer) -> dict[str, Tensor]:
    """Llama keeps queries, keys and values apart, and gate and up."""
    config = model.config
    stored = {name: p.detach() for name, p in model.named_parameters()}
    kv = config.num_kv_heads * config.head_size
    tensors = {
        "model.embed_tokens.weight": stored["embedding.weight"],
        "model.norm.weight": stored["norm.weight"],
    }
    for l in range(config.layers):
        here, there = f"blocks.{l}", f"model.layers.{l}"
        tensors[f"{there}.input_layernorm.weight"] = stored[f"{here}.attention_norm.weight"]
        tensors[f"{there}.post_attention_layernorm.weight"] = stored[f"{here}.mlp_norm.weight"]
        for kind in ("weight", "bias") if config.bias else ("weight",):
            parts = stored[f"{here}.attention.qkv.{kind}"].split((config.width, kv, kv))
            for name, part in zip("qkv", parts):
                tensors[f"{there}.self_attn.{name}_proj.{kind}"] = part
            tensors[f"{there}.self_attn.o_proj.{kind}"] = stored[f"{here}.attention.out.{kind}"]
            gate, up = stored[f"{here}.mlp.up.{kind}"].chunk(2)
            tensors[f"{there}.mlp.gate_proj.{kind}"] = gate
            tensors[f"{there}.mlp.up_proj.{kind}"] = up
            tensors[f"{there}.mlp.down_proj.{kind}"] = stored[f"{here}.mlp.down.{kind}"]
    if not config.tied:
        tensors["lm_head.weight"] = stored["head.weight"]
    # Parts of one tensor share its memory, which safetensors refuses.
    return {name: tensor.clone() for name, tensor in tensors.items()}


def llama_config(model: Transformer) -> dict[str, Any]:
    config = model.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.width,
        "intermediate_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.block,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROTARY_BASE,
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "bos_token_id": None,
        "eos_token_id": None,
        **_common(model),
    }


def _common(model: Transformer) -> dict[str, Any]:
    return {
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.config.tied,
        "torch_dtype": "float32",
    }
