"""An exported run in transformers: the same logits, the same tokens, the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from traindoctor.errors import ConfigError
from traindoctor.lm.checkpoint import load_run
from traindoctor.lm.config import ModelConfig
from traindoctor.lm.export_hf import export_hf, layout_of
from traindoctor.lm.generate import Sampling, generate
from traindoctor.lm.loop import train

transformers = pytest.importorskip("transformers")

GPT2 = {"norm": "layer", "positions": "learned", "mlp": "gelu"}
CASES: dict[str, dict[str, Any]] = {
    "llama char": {"kv_heads": 1},
    "llama bpe untied biased": {"tokenizer": "bpe", "vocab_size": 300, "tied": False, "bias": True},
    "gpt2 word": {**GPT2, "bias": True, "tokenizer": "word", "vocab_size": 40},
    "gpt2 untied unbiased": {**GPT2, "tied": False},
    "gpt2 approximate": {**GPT2, "mlp": "gelu-tanh"},
}


@pytest.mark.parametrize("name", CASES)
def test_logits_and_tokens_are_the_same(tmp_path: Path, tiny: Any, name: str) -> None:
    run, out = tmp_path / "run", tmp_path / "hf"
    train(run, tiny(steps=6, eval_every=6, lr=1e-2, sample_tokens=0, **CASES[name]))
    assert export_hf(run, out) == name.split()[0]
    ours, tokenizer, _ = load_run(run)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    text = "The quick brown\n  fox jumps over — the lazy zebra!"
    ids = tokenizer.encode(text)
    assert their_tokenizer(text)["input_ids"] == ids
    assert their_tokenizer.decode(ids) == tokenizer.decode(ids)
    tokens = torch.tensor([ids[:30]])
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=0)
    greedy = theirs.generate(
        tokens[:, :10],
        attention_mask=torch.ones(1, 10),
        max_new_tokens=15,
        do_sample=False,
        temperature=None,
        pad_token_id=0,
    )
    mine = generate(ours, tokens[:, :10], max_tokens=15, sampling=Sampling(temperature=0))
    assert torch.equal(greedy[:, 10:], mine)


def test_a_shape_that_transformers_does_not_know_is_told() -> None:
    with pytest.raises(ConfigError, match=r"no layout with norm=layer"):
        layout_of(ModelConfig(norm="layer"))
    with pytest.raises(ConfigError, match="with all heads"):
        layout_of(ModelConfig(norm="layer", positions="learned", mlp="gelu", kv_heads=1))


def test_nothing_is_written_over_unasked(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "hf"
    export_hf(trained, out)
    with pytest.raises(ConfigError, match="already exists"):
        export_hf(trained, out)
    export_hf(trained, out, overwrite=True)
    assert sorted(p.name for p in out.iterdir())[0] == "config.json"
