"""Every explanation: where it speaks, what it names, and that it says nothing of a difference without a form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.made_traces import entry, trace
from traindoctor.compare.kinds import (
    TRIED,
    attention,
    explain,
    layers,
    losses,
    sums,
    updates,
    whole,
)
from traindoctor.compare.kinds.attention import Attention
from traindoctor.compare.kinds.base import Kind, Scene
from traindoctor.compare.tolerance import Tolerance
from traindoctor.compare.trace import Entry

Array = Any
# B batch, T places, C width, H heads, V vocabulary, F hidden
B, T, C, H, V, F = 3, 6, 8, 2, 13, 10


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@dataclass(frozen=True)
class Case:
    """A's tensors, what B has instead of the last one, and what is to be said of it."""

    name: str
    says: Callable[[Scene], Kind | None]
    entries: list[Entry] = field(repr=False)
    b: Array = field(repr=False)
    code: str
    words: str
    settings: Mapping[str, object] = field(default_factory=dict)
    first: str = ""
    """The code that `explain` gives where another explanation fits as well."""

    def scene(self, b: Array | None = None) -> Scene:
        last = self.entries[-1]
        there = np.asarray(self.b if b is None else b)
        other = entry(last.name, last.kind, there.astype(np.float32), step=last.step)
        a, b_side = trace(self.entries, **self.settings), trace([other], "b")
        return Scene(last, a, b_side, Tolerance({}, 0))


def single(values: Array, kind: str = "activation", name: str = "mlp", **more: Any) -> Entry:
    return entry(name, kind, np.asarray(values).astype(np.float32), **more)


def simple() -> Iterator[Case]:
    """One tensor, no other."""
    x = numbers(B, T, C)
    holes = x.copy()
    holes[0, 1, 2:4] = np.nan
    words = "2 of 144 numbers are NaN in B, the first at (0, 1, 2)"
    yield Case("a NaN", whole.not_finite, [single(x)], holes, "not-finite", words)
    infinite = np.where(np.isnan(holes), np.inf, holes)
    words = "2 of 144 numbers are infinite in B, the first at (0, 1, 2)"
    yield Case("an infinity", whole.not_finite, [single(x)], infinite, "not-finite", words)
    for kind, words in (
        ("activation", "all zeros in B"),
        ("gradient", "no gradient arrives in B"),
        ("update", "the weight does not move in B"),
    ):
        yield Case(f"no {kind}", whole.zeros, [single(x, kind)], 0 * x, "zero", words)
    half = x.astype(np.float16).astype(np.float64)
    brain = (np.float32(x).view(np.uint32) + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)
    yield Case("float16", whole.shorter_dtype, [single(x)], half, "dtype", "rounded to float16")
    yield Case("bfloat16", whole.shorter_dtype, [single(x)], brain, "dtype", "rounded to bfloat16")
    tokens = entry("tokens", "input", np.zeros((B, T), np.int64))
    for times, words in (
        (-1.0, "B is A times -1: the sign is wrong"),
        (2.5, "B is A times 2.5"),
        (B * T, f"B is A times {B * T} = {B * T} (batch x length, the number of targets)"),
        (1 / (B * T), f"1 / {B * T} (batch x length, the number of targets): a mean where A has a"),
        (math.sqrt(V * V), f"B is A times {V}"),
    ):
        name = f"a factor of {times:.3g}"
        yield Case(name, whole.factor, [tokens, single(x)], times * x, "factor", words)
    square = numbers(C, C)
    yield Case(
        "turned",
        whole.axes,
        [single(square, "gradient")],
        square.T,
        "transposition",
        "B is A transposed",
    )
    words = "with its dimensions in the order (2, 1, 0)"
    yield Case(
        "axes",
        whole.axes,
        [single(numbers(4, 4, 4))],
        numbers(4, 4, 4).transpose(2, 1, 0),
        "transposition",
        words,
    )
    places = [entry("tokens", "input", np.zeros((B, T), np.int64)), single(x)]
    yield Case(
        "a shift",
        whole.shifted,
        places,
        np.roll(x, -1, 1),
        "shift",
        "off by 1 along the positions: place t has what A has at t +1",
    )
    yield Case(
        "a shift of rows",
        whole.shifted,
        places,
        np.roll(x, 1, 0),
        "shift",
        "off by 1 along the batch: place t has what A has at t -1",
    )
    blocks = x.reshape(B, T, 4, 2)[:, :, [1, 0, 3, 2]].reshape(x.shape)
    yield Case(
        "heads",
        whole.permuted,
        [single(x)],
        blocks,
        "permutation",
        "the heads stand in another order in B: [1, 0, 3, 2]",
        {"heads": 4},
    )
    columns = [7, 6, 5, 4, 3, 2, 1, 0]
    yield Case(
        "columns",
        whole.permuted,
        [single(x)],
        x[..., columns],
        "permutation",
        "the columns stand in another order in B: 7, 6, 5",
    )
    batch = entry("tokens", "input", np.zeros((B, T), np.int64))
    wide = numbers(4, 40, seed=5)
    last, first, inner = (wide.copy() for _ in range(3))
    last[:, 32:] = numbers(4, 8, seed=6)
    first[:, :32] = numbers(4, 32, seed=6)
    inner[:, 8:16] = 0
    yield Case(
        "a tile",
        whole.tile,
        [batch, single(wide)],
        last,
        "tile",
        "from index 32 on along dimension 1 (of 40): a last tile",
    )
    yield Case(
        "a first tile",
        whole.tile,
        [batch, single(wide)],
        first,
        "tile",
        "up to index 31 along dimension 1 (of 40)",
    )
    yield Case(
        "a tile inside",
        whole.tile,
        [batch, single(wide)],
        inner + np.where(inner == 0, 1, 0),
        "tile",
        "from index 8 to 15 along dimension 1 (of 40)",
    )
    words = "B is 0 from index 8 to 15 along dimension 1 (of 40)"
    yield Case("a hole", whole.cut, [batch, single(wide)], inner, "zero", words)
    rows = x * np.array([0.5, 1.25, 1.1])[:, None, None]
    words = "the rows of the batch are weighted 0.5, 1.25, 1.1 in B: a mean of means?"
    yield Case("rows weighted", whole.row_factors, [batch, single(x)], rows, "rows", words)


def of_updates() -> Iterator[Case]:
    weight, gradient = numbers(F, C), numbers(F, C, seed=1)
    rate, decay, beta1, beta2 = 0.01, 0.1, 0.9, 0.999
    said = {"lr": rate, "weight_decay": decay, "beta1": beta1, "beta2": beta2}
    held = single(weight, "weight", "up.weight")
    plain = -rate * gradient / (np.abs(gradient) + 1e-8)
    pulled = plain - rate * decay * weight
    last = [held, single(pulled, "update", "up.weight")]
    words = "weight decay is missing in B: the update lacks rate x weight decay = 0.01 x 0.1 of the"
    yield Case("no decay", updates.decay, last, plain, "decay", words, said)
    words = (
        "B decays what A does not: the update has rate x weight decay = 0.01 x 0.1 of the weight"
    )
    none = [held, single(plain, "update", "up.weight")]
    yield Case("a decay", updates.decay, none, pulled, "decay", words, said)
    words = "the weight decay differs: B's update has 0.0005 of the weight"
    yield Case("more decay", updates.decay, last, pulled - 5e-4 * weight, "decay", words, said)
    first, second = 1 - beta1, math.sqrt(1 - beta2)
    for factor, words in (
        (first / second, "neither moment is corrected for its start at 0 in B: the update is 3.16"),
        (
            first,
            "the first moment is not corrected for its start at 0 in B: the update is 0.1 times",
        ),
        (1 / second, "the second moment is not corrected for its start at 0 in B"),
    ):
        b = plain * factor - rate * decay * weight
        yield Case(
            f"no correction, {factor:.3g}",
            updates.bias_correction,
            last,
            b,
            "bias-correction",
            words,
            said,
        )


def of_tables() -> Iterator[Case]:
    places, words = numbers(T + 2, C, seed=3), numbers(V, C, seed=4)
    tokens = np.random.default_rng(0).integers(0, V, (B, T))
    batch = entry("tokens", "input", tokens)
    tables = [
        single(places, "weight", "positions.weight"),
        single(words, "weight", "embedding.weight"),
    ]
    embedded = words[tokens]
    before = [*tables, batch, single(embedded, name="embedding")]
    a = embedded + places[:T]
    shifted = embedded + places[1 : T + 1]
    said = "place t takes row t +1 of positions.weight in B instead of row t"
    yield Case(
        "positions", sums.rows_of_a_table, [*before, single(a, name="sum")], shifted, "shift", said
    )
    other = tokens.copy()
    other[0] = (other[0] * 3 + 5) % V
    said = f"B takes other rows of embedding.weight: at place 0 row {other[0, 0]}, A row {tokens[0, 0]}"
    # As many places along as there are: no shift.
    yield Case(
        "tokens",
        sums.rows_of_a_table,
        [*tables, batch, single(embedded, name="embedding")],
        words[other],
        "another",
        said,
    )


def of_layers() -> Iterator[Case]:
    x, weight, bias = numbers(B, T, C), numbers(C, C, seed=1), numbers(C, seed=2)
    held = [single(weight, "weight", "out.weight"), single(bias, "weight", "out.bias")]
    a = x @ weight.T + bias
    entries = [*held, single(x, name="out.input"), single(a, name="out")]
    yield Case(
        "no bias", layers.linear, entries, a - bias, "bias", "the bias out.bias is not added in B"
    )
    yield Case(
        "two biases",
        layers.linear,
        entries,
        a + bias,
        "bias",
        "the bias out.bias is added twice in B",
    )
    turned = x @ weight + bias
    yield Case(
        "W for W.T",
        layers.linear,
        entries,
        turned,
        "transposition",
        "B multiplies with out.weight transposed",
    )
    given = numbers(B, T, C, seed=3)
    back = [*held, single(given, "gradient", "out"), single(given @ weight, "gradient", "norm")]
    yield Case(
        "W.T for W",
        layers.linear_backward,
        back,
        given @ weight.T,
        "transposition",
        "B goes back through out.weight transposed",
    )
    wide = 2 * numbers(B, T, F, seed=4)
    for one, other in (("exact GELU", "tanh GELU"), ("SiLU", "ReLU"), ("ReLU", "squared ReLU")):
        functions = layers.FUNCTIONS[one], layers.FUNCTIONS[other]
        y = [single(wide, name="up"), single(functions[0](wide), name="act")]
        yield Case(
            f"{other} for {one}",
            layers.pointwise,
            y,
            functions[1](wide),
            "activation",
            f"B computes {other} where A computes {one}",
        )
    given, h = numbers(B, T, F, seed=5), 1e-5
    slopes = [(f(wide + h) - f(wide - h)) / (2 * h) for f in (layers._gelu, layers._gelu_tanh)]
    y = [
        single(wide, name="up"),
        single(given, "gradient", "act"),
        single(given * slopes[0], "gradient", "up"),
    ]
    yield Case(
        "the slope of tanh GELU",
        layers.pointwise_backward,
        y,
        given * slopes[1],
        "activation",
        "B goes back through tanh GELU, A through exact GELU",
    )


def normed(
    x: Array, weight: Array, bias: Array, eps: float, *, centred: bool = True, less: int = 0
) -> Array:
    inner = x - x.mean(-1, keepdims=True) if centred else x
    variance = (inner**2).sum(-1, keepdims=True) / (x.shape[-1] - less)
    return inner / np.sqrt(variance + eps) * weight + bias


def of_norms() -> Iterator[Case]:
    x, weight, bias = 0.3 + 0.1 * numbers(B, T, C), 1 + 0.1 * numbers(C, seed=1), numbers(C, seed=2)
    held = [single(weight, "weight", "norm.weight"), single(bias, "weight", "norm.bias")]
    about = {"op": "LayerNorm", "eps": 1e-5}
    entries = [
        *held,
        single(x, name="norm.input"),
        single(normed(x, weight, bias, 1e-5), name="norm", about=about),
    ]
    for name, b, code, words in (
        (
            "epsilon",
            normed(x, weight, bias, 1e-3),
            "epsilon",
            "the epsilon of norm is 0.001 in B, 1e-05 in A",
        ),
        (
            "n - 1",
            normed(x, weight, bias, 1e-5, less=1),
            "variance",
            "B divides the variance of norm by n - 1, A by n",
        ),
        (
            "RMSNorm",
            normed(x, weight, bias, 1e-5, centred=False),
            "variance",
            "A computes a LayerNorm, B the other of LayerNorm and RMSNorm",
        ),
    ):
        yield Case(name, layers.norm_epsilon, entries, b, code, words)
    given = numbers(B, T, C, seed=3)
    skip = numbers(B, T, C, seed=4)
    parts = layers._norm_parts(x, given * weight, 1e-5, True)
    a = sum(parts.values()) + skip
    back = [
        *held,
        single(x, name="x"),
        single(normed(x, weight, bias, 1e-5), name="norm", about=about),
    ]
    back += [
        single(skip, "gradient", "after"),
        single(given, "gradient", "norm"),
        single(a, "gradient", "x"),
    ]
    for name in parts:
        yield Case(
            f"without {name}",
            layers.norm_backward,
            back,
            a - parts[name],
            "missing-term",
            f"the backward pass of norm lacks {name} in B",
        )
    yield Case(
        "no skip",
        layers.norm_backward,
        back,
        a - skip,
        "missing-term",
        "the gradient of the skip path (after) is missing in B",
        first="missing-term",
    )
    yield Case(
        "no branch",
        layers.norm_backward,
        back,
        skip,
        "missing-term",
        "the gradient through norm is missing in B",
        first="another",
    )


def of_losses() -> Iterator[Case]:
    scores = numbers(B, T, V)
    wanted = np.random.default_rng(1).integers(0, V, (B, T))
    share = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)

    def gradient(targets: Array) -> Array:
        return share - np.eye(V)[targets]

    entries = [entry("targets", "input", wanted), single(scores, name="head")]
    entries.append(single(gradient(wanted) / (B * T), "gradient", "head"))
    for by, words in (
        (1, "place t is asked for the target of t -1"),
        (-1, "place t is asked for the target of t +1"),
    ):
        b = gradient(np.roll(wanted, by, -1)) / (B * T)
        yield Case(f"targets moved by {by}", losses.targets, entries, b, "shift", words)
    short = gradient(wanted) / (B * (T - 1))
    short[:, -1] = 0
    yield Case(
        "no last place",
        losses.targets,
        entries,
        short,
        "rows",
        "the last place of each row is not counted in B",
    )
    yield Case(
        "no one",
        losses.targets,
        entries,
        share / (B * T),
        "missing-term",
        "the 1 at the target is not subtracted",
    )


def of_loss_values() -> Iterator[Case]:
    scores = 2 * numbers(B, T, V)
    wanted = np.random.default_rng(1).integers(0, V, (B, T))
    wanted[0, :4] = -100
    log = scores - np.log(np.exp(scores).sum(-1, keepdims=True))

    def loss(targets: Array, counted: Array) -> Array:
        each = -np.take_along_axis(log, np.maximum(targets, 0)[..., None], -1)[..., 0]
        return each[counted].mean()

    kept, last = wanted >= 0, wanted >= 0
    last[:, -1] = False
    entries = [entry("targets", "input", wanted), single(scores, name="head")]
    entries.append(single(loss(wanted, kept), "loss", "loss"))
    for b, code, words in (
        (loss(wanted, last), "rows", "the last place of each row is not counted in B"),
        (loss(wanted, kept | True), "rows", "targets that are to be ignored are counted in B"),
        (
            np.mean([_row_mean(log[i], wanted[i]) for i in range(B)]),
            "mean",
            "B takes the mean of the rows' means, A the mean over all targets",
        ),
    ):
        yield Case(words, losses.value, entries, b, code, words)
    shifted = np.roll(np.maximum(wanted, 0), -1, -1)
    words = "the targets are off by one in B"
    yield Case(
        "a loss of moved targets", losses.value, entries, loss(shifted, last), "shift", words
    )


def _row_mean(log: Array, wanted: Array) -> Array:
    kept = np.flatnonzero(wanted >= 0)
    return -log[kept, wanted[kept]].mean()


def of_rules() -> Iterator[Case]:
    """Two steps of an optimizer, the second of which differs."""
    weight = numbers(F, C)
    gradients = [numbers(F, C, seed=seed) for seed in (1, 2)]
    plain = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}

    def adam(
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        *,
        coupled: bool = False,
    ) -> list[Array]:
        held, first, second, made = weight, 0.0, 0.0, []
        for count, gradient in enumerate(gradients, start=1):
            gradient = gradient + coupled * weight_decay * held
            first = beta1 * first + (1 - beta1) * gradient
            second = beta2 * second + (1 - beta2) * gradient**2
            move = first / (1 - beta1**count) / (np.sqrt(second / (1 - beta2**count)) + eps)
            made.append(-lr * (move + (not coupled) * weight_decay * held))
            held = held + made[-1]
        return made

    def sgd(momentum: float) -> list[Array]:
        first = gradients[0]
        return [-0.01 * first, -0.01 * (momentum * first + gradients[1])]

    def entries(moves: list[Array]) -> list[Entry]:
        found = [single(weight, "weight", "up.weight")]
        for step, (gradient, move) in enumerate(zip(gradients, moves)):
            found.append(single(gradient, "gradient", "up.weight", step=step))
            found.append(single(move, "update", "up.weight", step=step))
        return found

    own = adam(**plain)
    for name, value, code, words in (
        ("beta2", 0.95, "betas", "beta2 is 0.95 instead of 0.999"),
        ("beta1", 0.8, "betas", "beta1 is 0.8 instead of 0.9"),
    ):
        b = adam(**{**plain, name: value})[1]
        yield Case(name, updates.rule, entries(own), b, code, f"{words} in B", plain)
    # These two show at the first step; at the second the weights differ as well.
    b = adam(**{**plain, "eps": 1e-3})[0]
    words = "the optimizer's eps is 0.001 instead of 1e-08 in B"
    yield Case("eps", updates.rule, entries(own)[:3], b, "epsilon", words, plain)
    b = adam(**plain, coupled=True)[0]
    words = "weight decay is added to the gradient in B"
    yield Case("Adam for AdamW", updates.rule, entries(own)[:3], b, "decay", words, plain)
    words = "the momentum is 0 instead of 0.9 in B"
    said = {"lr": 0.01, "momentum": 0.9}
    yield Case("momentum", updates.rule, entries(sgd(0.9)), sgd(0.0)[1], "momentum", words, said)


def of_attention() -> Iterator[Case]:
    q, k, v = (numbers(B, T, C, seed=seed) for seed in range(3))
    own = Attention(H, 1 / math.sqrt(C // H), "causal")
    fused = single(np.concatenate((q, k, v), -1), name="qkv")
    entries = [fused, single(own.forward(q, k, v), name="mixed")]
    for words, code, other in attention._variants(own, C):
        if "query head" in words:
            continue  # here as many heads of keys as of queries: below
        b = other.forward(q, k, v)
        said = f"in the attention after qkv {words} in B"
        yield Case(words, attention.attention, entries, b, code, said, {"heads": H})
    for words, order in (("k and q", (k, q, v)), ("k and v", (q, v, k)), ("q and v", (v, k, q))):
        yield Case(
            f"{words} swapped",
            attention.attention,
            entries,
            own.forward(*order),
            "permutation",
            f"{words} of qkv have changed places in B",
            {"heads": H},
        )
    grouped = Attention(4, 1 / math.sqrt(2), "causal")
    few = k[..., :4], v[..., :4]
    shared = [single(np.concatenate((q, *few), -1), name="qkv")]
    shared.append(single(grouped.forward(q, *few), name="mixed"))
    b = replace(grouped, shared="far").forward(q, *few)
    words = "in the attention after qkv query head h takes the keys of head h mod n instead of its"
    said = {"heads": 4}
    yield Case("shared keys", attention.attention, shared, b, "permutation", words, said)
    turning = replace(own, rotary="halves")
    rotary = [fused, single(turning.forward(q, k, v), name="mixed")]
    b = replace(turning, base=500000.0).forward(q, k, v)
    words = "the base of the rotary positions is 500000 instead of 10000"
    yield Case("a base", attention.attention, rotary, b, "rotary", words, {"heads": H})
    parts = [single(x, name=name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    b = Attention(H, 1 / math.sqrt(C // H), "none").forward(q, k, v)
    yield Case(
        "three outputs",
        attention.attention,
        [*parts, entries[-1]],
        b,
        "mask",
        "in the attention after q the causal mask is missing in B",
    )
    given = numbers(B, T, C, seed=4)
    a = attention._backward(own, q, k, v, given)
    back = [fused, single(given, "gradient", "mixed"), single(a, "gradient", "qkv")]
    for change, code, words in (
        ({"scaled": False}, "scale", "the gradient of the scores is not scaled in B"),
        ({"summed": False}, "missing-term", "the derivative of the softmax lacks its sum in B"),
        ({"masked": False}, "mask", "the gradient of the scores is not masked in B"),
    ):
        b = attention._backward(own, q, k, v, given, **change)
        yield Case(words, attention.attention_backward, back, b, code, words, {"heads": H})


def of_sums() -> Iterator[Case]:
    x, y = numbers(B, T, C), numbers(B, T, C, seed=1)
    entries = [single(x, name="embedding"), single(y, name="mlp"), single(x + y, name="block")]
    yield Case(
        "no residual",
        sums.added,
        entries,
        y,
        "missing-term",
        "the output of embedding is missing in B",
        first="missing-term",
    )
    yield Case(
        "two residuals",
        sums.added,
        entries,
        2 * x + y,
        "added-term",
        "the output of embedding is added in B",
    )
    yield Case(
        "half",
        sums.added,
        entries,
        0.5 * x + y,
        "added-term",
        "the output of embedding is in B with 0.5 times its weight",
    )
    behind = [*entries[:2], single(numbers(B, T, C, seed=7), name="norm")]
    behind.append(single(x + y, name="block"))
    words = "B adds the output of norm where A adds the output of embedding"
    b = behind[2].read() + y
    yield Case("another residual", sums.replaced, behind, b, "another", words)
    old, new = numbers(F, C), numbers(F, C, seed=1)
    kept = [single(old, "gradient", "up.weight"), single(new, "gradient", "up.weight", step=1)]
    words = "the gradient of up.weight of step 0 is still in it: gradients are not cleared in B"
    yield Case("kept gradients", sums.added, kept, old + new, "added-term", words)
    z = numbers(B, T, C, seed=2)
    entries = [single(x, name="norm"), single(z, name="other"), single(y, name="mlp")]
    yield Case(
        "another",
        sums.another_tensor,
        entries,
        z,
        "another",
        "B has here what A has as the output of other",
    )
    given, inner = numbers(B, T, F, seed=3), numbers(B, T, C, seed=4)
    terms = np.einsum("bto,bti->boi", given, inner)
    entries = [
        single(inner, name="up.input"),
        single(given, "gradient", "up"),
        single(terms.sum(0), "gradient", "up.weight"),
    ]
    yield Case(
        "a row",
        sums.part_of_the_rows,
        entries,
        terms[:2].sum(0),
        "rows",
        "in the sum over the batch row 2 of the batch is missing in B",
    )
    words = "in the sum over the batch rows 1, 2 of the batch are missing in B"
    yield Case("two rows", sums.part_of_the_rows, entries, terms[0], "rows", words)
    words = "in the sum over the batch row 1 of the batch is counted otherwise in B"
    yield Case(
        "a row twice", sums.part_of_the_rows, entries, terms.sum(0) + terms[1], "rows", words
    )
    bias = [single(given, "gradient", "up"), single(given.sum((0, 1)), "gradient", "up.bias")]
    words = "position 5 is missing in B"
    yield Case("a place", sums.part_of_the_rows, bias, given[:, :5].sum((0, 1)), "rows", words)


GROUPS = (
    *(simple, of_updates, of_rules, of_tables, of_layers, of_norms),
    *(of_losses, of_loss_values, of_attention, of_sums),
)
CASES = [case for group in GROUPS for case in group()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_says_what_it_is(case: Case) -> None:
    found = case.says(case.scene())
    assert found is not None
    assert found.code == case.code
    assert case.words in found.sentence


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_other_explanation_comes_first(case: Case) -> None:
    found = explain(case.scene())
    assert found is not None
    assert found.code == (case.first or case.code)


def test_every_explanation_has_a_case() -> None:
    assert {case.says for case in CASES} == {says for _, says in TRIED}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_silent_where_both_sides_are_the_same(case: Case) -> None:
    scene = case.scene(case.entries[-1].read())
    assert case.says(scene) is None


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(CASES),
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1e-3, 0.03, 1.0, 30.0]),
    share=st.booleans(),
)
def test_a_random_difference_is_explained_by_none(
    case: Case, seed: int, size: float, share: bool
) -> None:
    """Everywhere and of no form: what is not known is not said."""
    a = case.entries[-1].read().astype(np.float64)
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(a.shape)
    b = a * (1 + size * noise) if share else a + size * np.sqrt((a**2).mean()) * noise
    scene = case.scene(b)
    tried = [one for kind, one in TRIED if kind in (None, scene.entry.kind)]
    assert [one.__name__ for one in tried if one(case.scene(b)) is not None] == []


@settings(max_examples=40, deadline=None)
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32))
def test_rounding_does_not_hide_it(case: Case, seed: int) -> None:
    """The same explanation where B is rounded otherwise."""
    if case.says in (whole.shorter_dtype, whole.zeros):
        return
    noise = np.random.default_rng(seed).uniform(-1, 1, np.shape(case.b))
    found = case.says(case.scene(np.asarray(case.b) * (1 + 2.0**-24 * noise)))
    assert found is not None
    assert case.words in found.sentence


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from(CASES), data=st.data())
def test_nothing_breaks_on_odd_numbers(case: Case, data: Any) -> None:
    """NaN, infinities, zeros, whole and huge numbers: an explanation or none, and no warning."""
    odd = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 3e38, 1e-45]))
    part = data.draw(st.sampled_from(["all", "one"]))
    b = np.array(case.b, dtype=np.float64)
    if part == "all":
        b[...] = odd
    else:
        b.flat[data.draw(st.integers(0, b.size - 1))] = odd
    found = explain(case.scene(b))
    if not math.isfinite(odd):
        assert found is not None
        assert found.code == "not-finite"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite(value: float) -> None:
    case = Case("", whole.not_finite, [single(1.5, "loss", "loss")], value, "not-finite", "")
    found = explain(case.scene())
    assert found is not None
    assert found.code == "not-finite"


def test_numbers_beyond_float16_are_not_float16() -> None:
    values = 1e6 * numbers(B, T, C)
    case = Case("", whole.shorter_dtype, [single(values)], whole.rounded(values, 11), "dtype", "")
    found = whole.shorter_dtype(case.scene())
    assert found is not None
    assert "TF32" in found.sentence


@pytest.mark.parametrize("heads", [7, 3.0, 1000, 10**16])
def test_heads_that_cannot_be(heads: float) -> None:
    """What a dump says of itself may be wrong."""
    cases = [case for case in CASES if "heads" in case.settings]
    for case in cases:
        explain(replace(case, settings={"heads": heads}).scene())
