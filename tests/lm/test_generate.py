"""Writing text: each way of choosing, the cache, windows longer than the block, streaming, stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.errors import CheckpointError, ConfigError
from traindoctor.lm.checkpoint import load_run
from traindoctor.lm.config import ModelConfig
from traindoctor.lm.generate import Sampling, TextStream, choose, generate, keep_likely, write_text
from traindoctor.lm.model import Transformer
from traindoctor.lm.tokenizer import train_tokenizer

V = 40


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(0)
    made = Transformer(ModelConfig(layers=2, heads=2, width=32, block=24, tied=False), V)
    with torch.no_grad():  # sharper than at the start, so that choices differ
        made.head.weight.mul_(20)
    return made.eval()


def greedy_by_hand(model: Transformer, prompt: torch.Tensor, count: int) -> torch.Tensor:
    tokens = prompt
    for _ in range(count):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), dim=1)
    return tokens[:, prompt.shape[1] :]


def test_greedy_equals_the_plain_forward_pass(model: Transformer) -> None:
    prompt = torch.randint(V, (3, 5))
    found = generate(model, prompt, max_tokens=19, sampling=Sampling(temperature=0))
    assert torch.equal(found, greedy_by_hand(model, prompt, 19))


def test_text_may_grow_beyond_the_block(model: Transformer) -> None:
    prompt = torch.randint(V, (2, 60))
    found = generate(model, prompt, max_tokens=70, sampling=Sampling(temperature=0))
    assert found.shape == (2, 70)
    # The cache holds 23 tokens of the prompt, then one more; then the last half block starts it anew.
    inside = greedy_by_hand(model, prompt[:, -23:], 2)
    assert torch.equal(found[:, :2], inside)
    window = torch.cat((prompt, found[:, :2]), dim=1)[:, -12:]
    assert torch.equal(found[:, 2:10], greedy_by_hand(model, window, 8))


def test_same_seed_same_text_and_rows_differ(model: Transformer) -> None:
    prompt = torch.zeros((4, 1), dtype=torch.long)

    def text(seed: int) -> torch.Tensor:
        sampling = Sampling(temperature=1.0, seed=seed)
        return generate(model, prompt, max_tokens=20, sampling=sampling)

    assert torch.equal(text(1), text(1))
    assert not torch.equal(text(1), text(2))
    assert not torch.equal(text(1)[0], text(1)[1])


def test_writing_draws_no_random_number_of_the_run(model: Transformer) -> None:
    before = torch.get_rng_state()
    generate(model, torch.zeros((1, 1), dtype=torch.long), max_tokens=5)
    assert torch.equal(torch.get_rng_state(), before)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.99),
)
def test_cut_tails_agree_with_their_definitions(
    seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(seed)) * 3
    for row in logits:
        p = row.double().softmax(-1)
        kept = keep_likely(row[None], Sampling(top_k=top_k))[0].isfinite()
        assert kept.sum() == (min(top_k, V) if top_k else V)
        kept = keep_likely(row[None], Sampling(top_p=top_p))[0].isfinite()
        assert p[kept].sum() >= top_p - 1e-6  # enough mass ...
        assert p[kept].sum() - p[kept].min() < top_p + 1e-6  # ... and no token more than needed
        kept = keep_likely(row[None], Sampling(min_p=min_p))[0].isfinite()
        assert p[kept].min() >= min_p * p.max() - 1e-6
        assert kept[p.argmax()]


def test_samples_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).repeat(6000, 1)
    tokens = choose(logits, Sampling(temperature=1.0), torch.Generator().manual_seed(0))
    share = torch.bincount(tokens[:, 0], minlength=3) / 6000
    # Three standard deviations of a share of one half over 6000 draws are 0.02.
    torch.testing.assert_close(share, torch.tensor([0.5, 0.3, 0.2]), atol=0.02, rtol=0)


def test_repetition_penalty_is_that_of_its_paper() -> None:
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    seen = torch.tensor([[True, False, True]])
    sampling = Sampling(temperature=0, repetition_penalty=2.0)
    generator = torch.Generator()
    assert choose(logits, sampling, generator, seen).item() == 1  # 2.0 became 1.0
    assert choose(logits, sampling, generator).item() == 0


def test_penalty_makes_loops_rarer(model: Transformer) -> None:
    prompt = torch.zeros((1, 1), dtype=torch.long)
    plain = generate(model, prompt, max_tokens=22, sampling=Sampling(temperature=0))
    changed = generate(
        model, prompt, max_tokens=22, sampling=Sampling(temperature=0, repetition_penalty=5.0)
    )
    assert len(changed.unique()) > len(plain.unique())


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": 1.0},
        {"repetition_penalty": 0.0},
    ],
)
def test_impossible_choices_are_told(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Sampling(**changes)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab é猫𝄞\n", max_size=30))
def test_streamed_pieces_join_to_the_text(text: str) -> None:
    tokenizer = train_tokenizer("bpe", ["ab"], vocab_size=256)
    stream = TextStream(tokenizer)
    shown = [stream.push(token) for token in tokenizer.encode(text)]
    assert "".join(shown) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in shown)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 257), max_size=30))
def test_what_was_shown_never_changes_whatever_a_model_writes(tokens: list[int]) -> None:
    tokenizer = train_tokenizer("char", ["ab"])
    stream = TextStream(tokenizer)
    shown = "".join(stream.push(token) for token in tokens)
    assert shown + stream.finish() == tokenizer.decode(tokens)


def test_a_stop_string_ends_the_text_and_is_never_shown() -> None:
    tokenizer = train_tokenizer("char", ["abcdefgh."])
    stream = TextStream(tokenizer, stop=["cd"])
    shown = ""
    for token in tokenizer.encode("abcabcdefg"):
        shown += stream.push(token)
        assert "cd" not in shown
        if stream.stopped:
            break
    assert shown + stream.finish() == "abcab" == stream.text


def test_a_trained_run_writes(trained: Path) -> None:
    model, tokenizer, config = load_run(trained)
    assert config.model.kv_heads == 1
    shown: list[str] = []
    sampling = Sampling(temperature=0)
    (text,) = write_text(
        model, tokenizer, "The ", max_tokens=30, sampling=sampling, on_text=shown.append
    )
    assert "".join(shown) == text
    assert len(text) >= 10
    texts = write_text(model, tokenizer, "", max_tokens=10, samples=3)
    assert len(texts) == 3


def test_checkpoints_can_be_chosen(trained: Path) -> None:
    load_run(trained, which="last")
    load_run(trained, which="12")
    with pytest.raises(CheckpointError, match="choose best, last or one of"):
        load_run(trained, which="7")
    with pytest.raises(CheckpointError, match="no run folder"):
        load_run(trained / "nowhere")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_graph_writes_the_same_text(model: Transformer) -> None:
    there = model.to("cuda")
    prompt = torch.randint(V, (3, 5), device="cuda")
    fast = generate(there, prompt, max_tokens=19, sampling=Sampling(temperature=0))
    assert torch.equal(fast, greedy_by_hand(there, prompt, 19))
    slow = generate(
        there, prompt, max_tokens=19, sampling=Sampling(temperature=0), on_tokens=lambda _: False
    )
    assert torch.equal(fast, slow)
    model.to("cpu")
