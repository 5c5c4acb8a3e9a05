"""Which weight is which: real models of other libraries, and layers of random shapes, fused and turned over."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from traindoctor.compare.matching import Match, Modules, describe, match_weights
from traindoctor.compare.terms import converted
from traindoctor.comparison import read_map
from traindoctor.errors import TraindoctorError
from traindoctor.lm.config import ModelConfig
from traindoctor.lm.model import Transformer

Shapes = dict[str, tuple[int, ...]]
VOCABULARY, BLOCK = 48, 12


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def held_by(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def carried(
    matches: list[Match], held: Mapping[str, Any], shapes: Shapes, *, to: str
) -> dict[str, np.ndarray]:
    """All that one side holds, in the terms of the other."""
    return {
        name: value
        for match in matches
        for name, value in converted(match, held, shapes, to=to).items()
    }


def ours(**more: Any) -> Transformer:
    sizes = {"layers": 2, "heads": 2, "width": 16, "block": BLOCK}
    return Transformer(ModelConfig(**{**sizes, **more}), VOCABULARY).eval()


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": BLOCK}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, bos_token_id=0, eos_token_id=0)
    return randomised(transformers.GPT2LMHeadModel(config).eval())


def llama(*, kv_heads: int = 2, tied: bool = False) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=kv_heads,
        max_position_embeddings=BLOCK,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    return randomised(transformers.LlamaForCausalLM(config).eval())


@torch.no_grad()
def randomised(model: nn.Module) -> nn.Module:
    """No two weights alike: a norm or a bias in the wrong place would show."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.normal_(std=0.3)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.add_(1)
    return model


@torch.no_grad()
def assert_same_model(theirs: nn.Module, mine: Transformer) -> list[Match]:
    """With the weights of the one in the other both give the same; and the way back is the identity."""
    shapes_a, shapes_b = shapes_of(theirs), shapes_of(mine)
    matches = match_weights(shapes_a, shapes_b)
    held = held_by(theirs)
    moved = carried(matches, held, shapes_b, to="b")
    assert moved.keys() == shapes_b.keys()
    for name, parameter in mine.named_parameters():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(moved[name])))
    tokens = torch.randint(0, VOCABULARY, (2, BLOCK), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(mine(tokens), theirs(tokens).logits, rtol=2e-4, atol=2e-4)
    back = carried(matches, moved, shapes_a, to="a")
    assert back.keys() == held.keys()
    assert all(np.array_equal(back[name], held[name]) for name in held)
    return matches


OURS_LIKE_GPT2 = {"norm": "layer", "positions": "learned", "mlp": "gelu-tanh", "bias": True}


def test_gpt2_of_hugging_face() -> None:
    matches = assert_same_model(gpt2(), ours(**OURS_LIKE_GPT2))
    turned = {match.b[0] for match in matches if match.layout == "transposed"}
    # Conv1D: all four matrices of a layer, the square one too.
    parts = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    assert turned == {f"blocks.{layer}.{part}.weight" for layer in range(2) for part in parts}
    assert (
        "transformer.h.0.attn.c_proj.weight = blocks.0.attention.out.weight, transposed"
        in describe(matches)
    )


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("tied", [False, True])
def test_llama_of_hugging_face(kv_heads: int, tied: bool) -> None:
    theirs = llama(kv_heads=kv_heads, tied=tied)
    matches = assert_same_model(theirs, ours(hidden=40, kv_heads=kv_heads, tied=tied))
    joined = {match.b[0]: match.a for match in matches if match.joined}
    layer = "model.layers.1"
    assert joined["blocks.1.attention.qkv.weight"] == tuple(
        f"{layer}.self_attn.{part}_proj.weight" for part in "qkv"
    )
    assert joined["blocks.1.mlp.up.weight"] == tuple(
        f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up")
    )
    assert len(joined) == 4
    assert not [match for match in matches if match.layout != "same"]


def test_the_other_way_round() -> None:
    """We are trusted, Hugging Face's is the copy."""
    mine, theirs = ours(hidden=40, tied=False), llama()
    shapes_a, shapes_b = shapes_of(mine), shapes_of(theirs)
    matches = match_weights(shapes_a, shapes_b)
    held = held_by(theirs)
    back = carried(matches, carried(matches, held, shapes_a, to="a"), shapes_b, to="b")
    assert back.keys() == held.keys()
    assert all(np.array_equal(back[name], held[name]) for name in held)


def test_a_tied_head_against_one_of_its_own() -> None:
    tied, own = shapes_of(ours(tied=True)), shapes_of(ours(tied=False))
    matches = match_weights(tied, own)
    assert [match.b for match in matches] == [match.a for match in matches]
    assert set(own) - {name for match in matches for name in match.b} == {"head.weight"}


def test_other_vocabularies_have_no_partner() -> None:
    shapes = shapes_of(ours())
    other = {**shapes, "embedding.weight": (VOCABULARY + 1, 16)}
    found = {match.b[0] for match in match_weights(shapes, other)}
    assert found == set(shapes) - {"embedding.weight"}


@pytest.mark.parametrize("seed", range(5))
def test_names_in_another_order(seed: int) -> None:
    shapes = shapes_of(ours())
    mixed = list(shapes.items())
    random.Random(seed).shuffle(mixed)
    matches = match_weights(shapes, dict(mixed))
    assert {match.a for match in matches} == {(name,) for name in shapes}
    assert all(match.a == match.b and match.layout == "same" for match in matches)


def test_wrapped_and_prefixed_names() -> None:
    """A model inside of another has the same names behind a prefix."""
    shapes = shapes_of(ours(**OURS_LIKE_GPT2))
    inside = {f"net.model.{name}": shape for name, shape in shapes.items()}
    for match in match_weights(shapes, inside):
        assert match == Match(match.a, (f"net.model.{match.a[0]}",))


# --- the map file

SMALL: Shapes = {"q.weight": (4, 6), "k.weight": (4, 6), "v.weight": (4, 6), "up.weight": (8, 6)}


def test_map_of_a_name_and_of_null() -> None:
    b: Shapes = {"one.weight": (6, 8), "two.weight": (4, 6), "three.weight": (4, 6)}
    found = match_weights(
        SMALL, b, {"one.weight": "up.weight", "two.weight": "v.weight", "three.weight": None}
    )
    assert found == [
        Match(("up.weight",), ("one.weight",), "transposed"),
        Match(("v.weight",), ("two.weight",)),
    ]


def test_map_of_a_list() -> None:
    parts = ["v.weight", "q.weight", "k.weight"]
    for shape, layout, dimension in (
        ((12, 6), "same", 0),
        ((6, 12), "transposed", 0),
        ((4, 18), "same", 1),
    ):
        found = match_weights(SMALL, {"wqkv": shape}, {"wqkv": parts})
        assert found == [Match(tuple(parts), ("wqkv",), layout, dimension)]


def test_map_of_the_name_of_an_output() -> None:
    """What is no weight is left to the outputs."""
    assert match_weights(SMALL, SMALL, {"mlp": "net.mlp", "head": None}) == match_weights(
        SMALL, SMALL
    )
    modules = Modules(["net.mlp", "x"], [], {"mlp": "net.mlp", "mlp#2": "x", "x": None})
    assert modules.of("mlp") == "net.mlp"
    assert modules.of("mlp#2") == "x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"q.weight": ["q.weight", "none"]}, "A has no weight 'none'"),
        ({"q.weight": "up.weight"}, r"has the shape \(4, 6\) in B, up.weight has \(8, 6\) in A"),
        (
            {"q.weight": ["q.weight", "k.weight"]},
            r"has the shape \(4, 6\) in B, q.weight, k.weight",
        ),
        ({"q.weight": [1]}, "must stand for a name, a list of names or null"),
        ({"q.weight": 3}, "must stand for a name, a list of names or null"),
        ({"q.weight": {"a": 1}}, "must stand for a name, a list of names or null"),
        ({"q.weight": []}, "must stand for a name, a list of names or null"),
        ({"q.weight": "none"}, "A has no weight 'none'"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_maps(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TraindoctorError, match=said):
        match_weights(SMALL, SMALL, given)


def test_map_files(tmp_path: Path) -> None:
    file = tmp_path / "map.json"
    for content, said in (
        (b"", "cannot be read"),
        (b"[]", "must be a JSON object"),
        (b"\xff", "cannot be read"),
        (b"[" * 9000, "cannot be read"),
    ):
        file.write_bytes(content)
        with pytest.raises(TraindoctorError, match=said):
            read_map(file)
    with pytest.raises(TraindoctorError, match="cannot be read"):
        read_map(tmp_path / "none.json")
    file.write_text('{"a": "b", "c": null, "d": ["e", "f"]}')
    assert read_map(file) == {"a": "b", "c": None, "d": ["e", "f"]}


# --- layers of random shapes


@dataclass(frozen=True)
class Style:
    """How a library writes a layer: whether it joins its matrices, and which way they lie."""

    names: Mapping[str, str]
    fused: bool
    gated: bool
    turned: bool

    def weights(self, plain: Mapping[str, np.ndarray], layer: int) -> Iterator[tuple[str, Any]]:
        """Of the plain layer: a norm, q, k, v, out; a norm, gate, up, down."""
        attention = ["q+k+v"] if self.fused else ["q", "k", "v"]
        mlp = ["gate+up"] if self.gated else ["gate", "up"]
        for name in ("norm1", *attention, "out", "norm2", *mlp, "down"):
            for kind in ("weight", "bias"):
                held = [
                    plain[f"{part}.{kind}"] for part in name.split("+") if f"{part}.{kind}" in plain
                ]
                if held:
                    whole = np.concatenate(held)
                    turned = self.turned and kind == "weight"
                    where = f"{self.names['layers']}.{layer}.{self.names[name]}.{kind}"
                    yield where, whole.T if turned else whole


OF_A = {
    "layers": "model.layers",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "out": "self_attn.o_proj",
    "q+k+v": "self_attn.qkv_proj",
    "gate+up": "mlp.gate_up_proj",
    **{part: f"self_attn.{part}_proj" for part in "qkv"},
    **{part: f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
OF_B = {
    "layers": "blocks",
    "norm1": "ln1",
    "norm2": "ln2",
    "out": "attn.wo",
    "q+k+v": "attn.wqkv",
    "gate": "ffn.w1",
    "up": "ffn.w3",
    "down": "ffn.w2",
    "gate+up": "ffn.w13",
    **{part: f"attn.w{part}" for part in "qkv"},
}


@settings(max_examples=150, deadline=None)
@given(
    width=st.sampled_from([2, 4, 6]),
    keys=st.sampled_from([1, 2]),
    hidden=st.sampled_from([7, 11, 16, 25]),
    layers=st.integers(1, 12),
    bias=st.booleans(),
    fused=st.tuples(st.booleans(), st.booleans()),
    gated=st.tuples(st.booleans(), st.booleans()),
    turned=st.tuples(st.booleans(), st.booleans()),
)
def test_random_layers(
    width: int,
    keys: int,
    hidden: int,
    layers: int,
    bias: bool,
    fused: tuple[bool, bool],
    gated: tuple[bool, bool],
    turned: tuple[bool, bool],
) -> None:
    # Three square matrices side by side lie either way: the test below.
    assume(keys > 1 or fused[0] == fused[1] or turned[0] == turned[1])
    sizes = {"q": width, "k": width // keys, "v": width // keys, "out": width}
    sizes |= {"gate": hidden, "up": hidden, "down": width}
    rng = np.random.default_rng(0)
    sides: list[dict[str, np.ndarray]] = [{}, {}]
    for layer in range(layers):
        plain = {f"{name}.weight": rng.standard_normal(width) for name in ("norm1", "norm2")}
        for name, size in sizes.items():
            inner = hidden if name == "down" else width
            plain[f"{name}.weight"] = rng.standard_normal((size, inner))
            if bias:
                plain[f"{name}.bias"] = rng.standard_normal(size)
        for side, names, which in ((sides[0], OF_A, 0), (sides[1], OF_B, 1)):
            style = Style(names, fused=fused[which], gated=gated[which], turned=turned[which])
            side |= dict(style.weights(plain, layer))
    shapes_a, shapes_b = ({name: value.shape for name, value in side.items()} for side in sides)
    matches = match_weights(shapes_a, shapes_b)
    for held, other, shapes, to in (
        (sides[0], sides[1], shapes_b, "b"),
        (sides[1], sides[0], shapes_a, "a"),
    ):
        found = carried(matches, held, shapes, to=to)
        wrong = [n for n in other if n not in found or not np.array_equal(found[n], other[n])]
        assert not wrong, describe(matches)


def test_square_parts_in_a_fused_weight_that_is_turned_over() -> None:
    a: Shapes = {f"l.0.{part}.weight": (4, 4) for part in "qkv"} | {"l.0.up.weight": (9, 4)}
    b: Shapes = {"l.0.wqkv.weight": (4, 12), "l.0.fc.weight": (4, 9)}
    assert {match.layout for match in match_weights(a, b)} == {"transposed"}


def test_parts_that_have_partners_of_their_own() -> None:
    squares = {f"l.0.{part}.weight": (6, 6) for part in ("q", "k", "v", "out")}
    a: Shapes = squares | {"l.0.gate.weight": (9, 6), "l.0.up.weight": (9, 6)}
    b: Shapes = {f"h{name[1:]}": shape for name, shape in squares.items()}
    found = match_weights(a, b | {"h.0.w13.weight": (18, 6)})
    assert Match(("l.0.gate.weight", "l.0.up.weight"), ("h.0.w13.weight",)) in found
    assert len(found) == 5


# --- outputs


def test_outputs_follow_the_weights_they_hold() -> None:
    a = {
        "layers.0.attn.qkv.weight": (12, 4),
        "layers.0.attn.out.weight": (4, 4),
        "emb.weight": (9, 4),
    }
    b = {
        **{f"h.0.mix.{part}.weight": (4, 4) for part in "qkv"},
        "h.0.mix.proj.weight": (4, 4),
        "wte.weight": (9, 4),
    }
    outputs = ["emb", "layers.0.attn.qkv", "layers.0.attn.out", "layers.0.attn", "layers.0"]
    outputs += [f"{name}.input" for name in outputs] + ["layers.0.attn.out#2"]
    modules = Modules(outputs, match_weights(a, b))
    assert modules.of("wte") == "emb"
    assert modules.of("h.0.mix.proj") == "layers.0.attn.out"
    assert modules.of("h.0.mix.proj.input") == "layers.0.attn.out.input"
    assert modules.of("h.0.mix.proj#2") == "layers.0.attn.out#2"
    assert modules.of("h.0.mix.q") is None
    assert modules.of("unknown") is None
