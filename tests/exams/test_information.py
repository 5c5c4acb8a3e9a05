"""Each exam on the fault it was made for, and on sound models that look like it.

Legend: B rows, T places, D features, V tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_transformer import (
    Attention,
    B,
    D,
    Model,
    T,
    V,
    classify,
    classify_all,
    next_token,
    reverse,
    text,
)
from torch import Tensor, nn

from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.data.targets_misaligned import targets_misaligned
from traindoctor.checks.model.attention_blind import attention_blind
from traindoctor.checks.model.causal_mask_leak import causal_mask_leak
from traindoctor.checks.model.init_too_large import init_too_large
from traindoctor.exams.attention_scores import attention_scores
from traindoctor.exams.dead_units import dead_units
from traindoctor.exams.dependence import dependence
from traindoctor.exams.init_scale import init_scale
from traindoctor.exams.input_dependence import input_dependence
from traindoctor.exams.normalisation import normalisation
from traindoctor.exams.padding import padding
from traindoctor.exams.positions import positions
from traindoctor.exams.residual import residual
from traindoctor.exams.sharing import sharing
from traindoctor.exams.shift import shift
from traindoctor.exams.softmax_axis import softmax_axis
from traindoctor.experiment.patient import Patient
from traindoctor.record import make_record

Examine = Callable[..., Patient]


@pytest.fixture
def examine(examine: Callable[..., Patient]) -> Examine:
    return lambda model, loss, **settings: examine(model, loss, text, **settings)


def first(patient: Patient, exam: Any) -> dict[str, Any]:
    result = exam(patient)
    assert result.done, result.reason
    return result.values["pairs"][0]


def test_shift_of_next_tokens_twice_shifted_and_unshifted_targets(examine: Examine) -> None:
    def shifted(by: int) -> Callable[[nn.Module, Tensor], Tensor]:
        def loss(model: nn.Module, ids: Tensor) -> Tensor:
            return F.cross_entropy(model(ids[:, :T]).transpose(1, 2), ids[:, by : T + by])

        return loss

    for by in (0, 1, 2):
        assert first(examine(Model(), shifted(by)), shift)["shift"] == by


def test_shift_is_seen_through_hand_written_losses(examine: Examine) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logs = model(ids[:, :T]).log_softmax(-1)
        return -logs.gather(-1, ids[:, 1 : T + 1, None]).mean()

    assert first(examine(Model(), loss), shift)["shift"] == 1


def test_targets_dealt_to_other_rows_are_told_from_unrelated_ones(examine: Examine) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        targets = ids[:, 1 : T + 1].roll(1, dims=0)
        return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), targets.flatten())

    pair = first(examine(Model(), loss), shift)
    assert pair["shift"] is None
    assert (pair["dealt"]["shift"], pair["dealt"]["moved"]) == (1, 1.0)


def test_scores_flattened_in_another_order_than_targets(examine: Examine) -> None:
    def crossed(model: nn.Module, ids: Tensor) -> Tensor:
        scores = model(ids[:, :T]).transpose(0, 1).flatten(0, 1)
        return F.cross_entropy(scores, ids[:, 1 : T + 1].flatten())

    assert first(examine(Model(), crossed), dependence)["crossed"]
    assert not first(examine(Model(), next_token), dependence)["crossed"]
    leaky = first(examine(Model(mask="none"), next_token), dependence)
    assert not leaky["crossed"]


def test_scores_cut_at_the_wrong_end_lag_behind_their_tokens(examine: Examine) -> None:
    assert first(examine(Model(prefix=True), next_token), dependence)["lag"] == 1
    assert first(examine(Model(), next_token), dependence)["lag"] == 0


class Prompted(Model):
    """Three vectors of its own before the tokens: more scores than tokens."""

    def __init__(self) -> None:
        super().__init__(places=False)
        self.prompt = nn.Parameter(torch.randn(3, D))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.prompt.expand(len(x), -1, -1), self.token(x)], dim=1)
        for attention, norm in zip(self.attention, self.norm):
            h = h + attention(norm(h))
        return self.head(h)


@pytest.mark.parametrize("twice", [False, True])
def test_a_prompt_before_the_tokens_moves_scores_and_targets(examine: Examine, twice: bool) -> None:
    """Labels are padded for the prompt and shifted against the scores, once here and perhaps before."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        labels = F.pad(ids[:, 1 : T + 1] if twice else ids[:, :T], (3, 0), value=-100)
        scores = model(ids[:, :T])
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    pair = next(
        p for p in shift(examine(Prompted(), loss)).values["pairs"] if p["input"] == "token.weight"
    )
    assert (pair["shift"], pair["prefix"]) == (2 if twice else 1, 3)


def test_rows_padded_on_different_sides_have_shifts_of_their_own(examine: Examine) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        lengths = range(T - B, T)
        inputs = torch.stack([F.pad(row[:n], (T - n, 0)) for row, n in zip(ids, lengths)])
        targets = torch.stack(
            [F.pad(row[1 : n + 1], (0, T - n), value=-100) for row, n in zip(ids, lengths)]
        )
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    pair = first(examine(Model(), loss), shift)
    assert pair["shift"] is None
    assert pair["ragged"]["shifts"][-4:] == [5, 4, 3, 2]  # of the rows long enough to tell
    assert first(examine(Model(pooled=0, mask="none"), reverse), shift)["ragged"] is None


def test_shift_is_silent_on_other_tasks(examine: Examine) -> None:
    assert first(examine(Model(mask="none"), reverse), shift)["places"] == "reversed"
    assert first(examine(Model(pooled=5), classify), shift)["shift"] is None


def test_a_sound_mask_passes_exactly_nothing(examine: Examine) -> None:
    pair = first(examine(Model(), next_token), dependence)
    assert pair["expects_causal"]
    assert (pair["future"], pair["other_rows"]) == (0.0, 0.0)
    assert pair["other_places"] > 1e-3


@pytest.mark.parametrize("mask", ["none", "off by one", "after"])
def test_leaks_are_found_and_located(examine: Examine, mask: str) -> None:
    pair = first(examine(Model(mask=mask), next_token), dependence)
    assert pair["future"] > 1e-3
    assert pair["leaking_module"] == "attention.0"


def split_rows(model: nn.Module, ids: Tensor, size: int) -> list[Tensor]:
    scores, targets = model(ids[:, :T]).flatten(0, 1), ids[:, 1 : T + 1].flatten()
    pieces = zip(scores.split(size), targets.split(size))
    return [F.cross_entropy(*piece, reduction="sum") for piece in pieces]


def sliced_rows(model: nn.Module, ids: Tensor, size: int) -> list[Tensor]:
    scores, targets = model(ids[:, :T]).flatten(0, 1), ids[:, 1 : T + 1].flatten()
    return [
        F.cross_entropy(scores[i : i + size], targets[i : i + size], reduction="sum")
        for i in range(0, B * T, size)
    ]


def place_by_place(model: nn.Module, ids: Tensor, size: int) -> list[Tensor]:
    scores = model(ids[:, :T])
    return [
        F.nll_loss(scores[:, t].log_softmax(-1), ids[:, t + 1], reduction="sum") for t in range(T)
    ]


def head_by_pieces(model: nn.Module, ids: Tensor, size: int) -> list[Tensor]:
    """The scores of all places are never in memory at once."""
    head, model.head = model.head, nn.Identity()
    hidden, targets = model(ids[:, :T]).flatten(0, 1), ids[:, 1 : T + 1].flatten()
    model.head = head
    number = -(-B * T // size)
    pieces = zip(hidden.chunk(number), targets.chunk(number))
    return [F.cross_entropy(head(h), y, reduction="sum") for h, y in pieces]


@pytest.mark.parametrize("size", [T, 2 * T, 9, B])
@pytest.mark.parametrize("pieces", [split_rows, sliced_rows, place_by_place, head_by_pieces])
def test_a_loss_taken_piece_by_piece_is_one_loss(
    examine: Examine, pieces: Callable[[nn.Module, Tensor, int], list[Tensor]], size: int
) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return torch.stack(pieces(model, ids, size)).sum() / (B * T)

    sound, leaky = (examine(Model(mask=mask), loss) for mask in ("causal", "none"))
    assert [pair["expects_causal"] for pair in dependence(sound).values["pairs"]] == [True]
    assert first(sound, dependence)["future"] == 0.0
    assert first(leaky, dependence)["future"] > 1e-3
    result = dict(shift(sound).values)
    assert isinstance(targets_misaligned(make_record(exams={"shift": result})), Clear)


@pytest.mark.parametrize("how", ["scripted", "traced"])
def test_code_that_cannot_be_seen_is_not_acquitted(examine: Examine, how: str) -> None:
    """TorchScript calls nothing that a tape hears: a replay would hold its results still."""

    class Mixing(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + (h @ h.transpose(1, 2)).softmax(-1) @ h

    class Unseen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(V, D), nn.Linear(D, V)
            example = torch.randn(B, T, D)
            self.mix = (
                torch.jit.script(Mixing())
                if how == "scripted"
                else torch.jit.trace(Mixing(), example)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.mix(self.token(x)))

    patient = examine(Unseen(), next_token)
    for exam in (dependence, positions, softmax_axis, attention_scores, residual):
        result = exam(patient)
        assert result.outcome == "refused", result
        assert "outside the taped step" in result.reason


def test_a_prefix_that_does_not_count_may_see_ahead(examine: Examine) -> None:
    class Prefix(Model):
        pass

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        targets = ids[:, 1 : T + 1].clone()
        targets[:, :8] = -100
        return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), targets.flatten())

    patient = examine(Prefix(mask="none"), loss)
    pair = first(patient, dependence)
    assert pair["expects_causal"]
    assert pair["future"] == 0.0  # changed from place 7 on; earlier places do not count


@pytest.mark.parametrize("mask", ["causal", "none", "off by one"])
@pytest.mark.parametrize("source", ["whole", "a table of its own"])
def test_copying_a_source_is_no_leak_but_a_decoder_that_sees_ahead_is(
    examine: Examine, mask: str, source: str
) -> None:
    class Copying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(V, D), nn.Linear(D, V)
            self.read = self.token if source == "whole" else nn.Embedding(V, D)
            self.place = nn.Parameter(torch.randn(T + 1, D))

        def forward(self, given: Tensor, so_far: Tensor) -> Tensor:
            memory = self.read(given) + self.place[: given.shape[1]]
            h = self.token(so_far) + self.place[: so_far.shape[1]]
            ahead = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril(
                int(mask == "off by one")
            )
            h = h + F.scaled_dot_product_attention(
                h, h, h, attn_mask=None if mask == "none" else ahead
            )
            return self.head(h + F.scaled_dot_product_attention(h, memory, memory))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        scores = model(ids[:, : T + 1], ids[:, :T])
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1 : T + 1].flatten())

    result = dependence(examine(Copying(), loss))
    found = causal_mask_leak(make_record(exams={"dependence": dict(result.values)}))
    assert isinstance(found, Clear if mask == "causal" else Finding)


@pytest.mark.parametrize("model", ["start token", "states and actions"])
@pytest.mark.parametrize("late", [True, False])
def test_targets_that_equal_inputs_are_right_where_scores_are_made_before(
    examine: Examine, model: str, late: bool
) -> None:
    """Something stands before each token, and its score is the answer; or the token's own place answers."""

    class Interleaved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.state, self.head = nn.Embedding(V, D), nn.Linear(1, D), nn.Linear(D, V)
            self.start, self.place = nn.Parameter(torch.randn(1, 1, D)), nn.Embedding(2 * T + 1, D)

        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            if model == "start token":
                h, own = torch.cat([self.start.expand(B, -1, -1), h], 1), slice(1, None)
                before = slice(-1)
            else:
                h = torch.stack([self.state(x[..., None].sin()), h], 2).flatten(1, 2)
                own, before = slice(1, None, 2), slice(0, None, 2)
            h = h + self.place(torch.arange(h.shape[1]))
            h = h + F.scaled_dot_product_attention(h, h, h, is_causal=True)
            return self.head(h[:, before if late else own])

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        x = ids[:, :T]
        return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    patient = examine(Interleaved(), loss)
    exams = {e.name: dict(e(patient).values) for e in (shift, dependence)}
    assert exams["shift"]["pairs"][0]["shift"] == 0
    found = targets_misaligned(make_record(exams=exams))
    assert isinstance(found, Clear if late else Finding)


def test_attention_that_sees_only_itself_is_blind(examine: Examine) -> None:
    pair = first(examine(Model(mask="only self"), next_token), dependence)
    assert pair["other_places"] == 0.0
    assert pair["one_token"] > 0.1


@pytest.mark.parametrize("read", [True, False])
def test_places_that_read_a_memory_and_not_each_other(examine: Examine, read: bool) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory, self.token = nn.Embedding(V, D), nn.Embedding(V, D)
            self.head = nn.Linear(D, V)

        def forward(self, kept: Tensor, asked: Tensor) -> Tensor:
            m, x = self.memory(kept), self.token(asked)
            brought = F.scaled_dot_product_attention(x, m, m)
            return self.head(x + (brought if read else brought * 0))

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :T], ids[:, :4]).flatten(0, 1), ids[:, 4:8].flatten())

    result = dependence(examine(Reader(), loss))
    pair = next(p for p in result.values["pairs"] if p["input"].startswith("token"))
    assert pair["other_places"] == 0.0
    assert (pair["other_inputs"] > 1e-3) is read


def test_batch_first_forgotten_mixes_rows_and_seq_first_does_not(examine: Examine) -> None:
    class Mha(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(V, D), nn.Linear(D, V)
            self.layer = nn.TransformerEncoderLayer(D, 4, 24, dropout=0.0)

        def forward(self, x: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
            return self.head(self.layer(self.token(x), src_mask=mask))

    def seq_first(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.T
        return F.cross_entropy(model(ids[:T]).flatten(0, 1), ids[1 : T + 1].flatten())

    sick = first(examine(Mha(), next_token), dependence)
    assert sick["other_rows"] > 1e-3
    assert sick["other_places"] == 0.0
    sound = first(examine(Mha(), seq_first), dependence)
    assert (sound["axis"], sound["other_rows"], sound["future"]) == (0, 0.0, 0.0)


def parameter(model: Any) -> Tensor:
    return model.table.weight


def looked_up(model: Any) -> Tensor:
    return model.table(torch.arange(T)[None])


def waves(model: Any) -> Tensor:
    return torch.outer(torch.arange(T), torch.ones(D)).sin()[None].expand(B, T, D)


def constant(model: Any) -> Tensor:
    return model.table.weight[:1]


@pytest.mark.parametrize(
    ("code", "told"),
    [(parameter, True), (looked_up, True), (waves, True), (constant, False), (None, False)],
)
@pytest.mark.parametrize("in_front", [False, True], ids=["tokens", "a token more in front"])
def test_codes_of_places_tell_the_batch_from_time(
    examine: Examine, code: Any, told: bool, in_front: bool
) -> None:
    """A tagger: its targets are no tokens of the text, so they do not tell."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.table, self.head = (
                nn.Embedding(V, D),
                nn.Embedding(T, D),
                nn.Linear(D, 3),
            )
            self.layer = nn.TransformerEncoderLayer(D, 4, 24, dropout=0.0)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.token(ids)
            x = x if code is None else x + code(self)
            x = torch.cat([x[:, :1], x], dim=1) if in_front else x
            return self.head(self.layer(x)[:, -T:])

    def tags(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids[:, :T]
        return F.cross_entropy(model(ids).flatten(0, 1), (ids * 5 % 7 % 3).flatten())

    pair = first(examine(Tagger(), tags), dependence)
    assert not pair["axis_is_known"]
    assert pair["axis_has_codes"] is told
    assert pair["other_rows"] > 1e-3


def test_batch_norm_is_named_as_what_mixes(examine: Examine) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.BatchNorm1d(D)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(1, 2)).transpose(1, 2)

    pair = first(examine(Model(norm=Norm), next_token), dependence)
    assert pair["other_rows"] > 1e-4
    assert pair["mixing_op"] == "batch_norm"


def test_contrastive_losses_are_not_examined(examine: Examine) -> None:
    def contrast(model: nn.Module, ids: Tensor) -> Tensor:
        one, two = model(ids[:, :T]), model(ids[:, 3:])
        return F.cross_entropy(one @ two.T, torch.arange(B))

    assert dependence(examine(Model(pooled=8), contrast)).outcome == "not-applicable"


def test_a_batch_drawn_inside_the_step_is_no_reason_to_judge_wrongly(examine: Examine) -> None:
    generator = torch.Generator().manual_seed(3)

    class Drawing(Model):
        def forward(self, x: Tensor) -> Tensor:
            keep = torch.rand(x.shape, generator=generator) > 0.1
            return super().forward(torch.where(keep, x, 0))

    result = dependence(examine(Drawing(), next_token))
    assert not result.done or result.values["pairs"][0]["future"] == 0.0


def test_order_reaches_the_output_only_with_positions(examine: Examine) -> None:
    without = first(examine(Model(mask="none", places=False), reverse), positions)
    assert without["gap"] <= 3 * without["noise"] < 1e-5
    sound = first(examine(Model(mask="none"), reverse), positions)
    assert sound["gap"] > 0.01 * sound["replaced"] > 0.01
    pooled = first(examine(Model(mask="none", places=False, pooled=5), classify), positions)
    assert pooled["gap"] <= 3 * pooled["noise"] < 1e-5
    assert positions(examine(Model(places=False), next_token)).outcome == "not-applicable"


class Stack(nn.Module):
    """torch's own encoder layers, with weights larger than usual: rounding adds up to 1e-5 and more."""

    def __init__(self, *, places: bool, depth: int = 8) -> None:
        super().__init__()
        self.token, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.place = nn.Embedding(T, D) if places else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        for weight in self.layers.parameters():
            if weight.ndim > 1:
                weight.data *= 3.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x)
        if self.place is not None:
            h = h + self.place(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("places", [False, True])
def test_rounding_of_deep_and_of_half_precision_stacks_is_no_order(
    examine: Examine, places: bool, half: bool
) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return reverse(model, ids)

    pair = first(examine(Stack(places=places), loss), positions)
    assert (pair["gap"] > 3 * pair["noise"]) is places
    assert (pair["gap"] > 0.1 * pair["replaced"]) is places


def masked_model(how: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """Tokens to be guessed are picked before the loss, by a mask or by numbers, after the head or before it."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids[:, :T]
        mask = torch.zeros(B, T, dtype=torch.bool)
        mask[:, ::3] = True
        out = model(ids.masked_fill(mask, 0))
        if how == "numbers":
            chosen = mask.flatten().nonzero().flatten()
            return F.cross_entropy(out.flatten(0, 1).index_select(0, chosen), ids.flatten()[chosen])
        if how == "before the head":
            out = F.linear(F.gelu(out)[mask], torch.eye(V))
            return F.cross_entropy(out, ids[mask])
        return F.cross_entropy(out[mask], ids[mask])

    return loss


@pytest.mark.parametrize("how", ["mask", "numbers", "before the head"])
def test_losses_over_picked_places_are_laid_over_all_places(examine: Examine, how: str) -> None:
    loss = masked_model(how)
    without = first(examine(Model(places=False, mask="none"), loss), positions)
    assert without["gap"] < 1e-4
    assert first(examine(Model(mask="none"), loss), positions)["gap"] > 0.01
    patient = examine(Model(norm=lambda: nn.LayerNorm((T, D)), mask="none"), loss)
    axes = {tuple(n["axes"]) for n in normalisation(patient).values["norms"]}
    assert ("feature", "time") in axes
    pair = first(examine(Model(mask="none"), loss), dependence)
    assert not pair["expects_causal"]
    assert pair["other_places"] > 1e-3


@pytest.mark.parametrize(
    ("settings", "off", "at_product"),
    [
        ({}, False, False),
        ({"dim": -2, "mask": "none"}, True, True),
        ({"dim": 0, "mask": "none"}, True, True),
        ({"mask": "after"}, False, True),
    ],
)
def test_weights_sum_to_one_over_the_keys(
    examine: Examine, settings: dict[str, Any], off: bool, at_product: bool
) -> None:
    result = softmax_axis(examine(Model(**settings), next_token))
    assert result.done, result.reason
    row = result.values["attentions"][0]
    assert (row["off"] > 1e-3) is off
    assert (row["off_at_product"] > 1e-3) is at_product


def test_softmax_of_einsum_attention_and_of_built_in_attention(examine: Examine) -> None:
    class Einsum(nn.Module):
        def __init__(self, spell: str) -> None:
            super().__init__()
            self.token, self.head, self.spell = nn.Embedding(V, D), nn.Linear(D, V), spell

        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            weights = torch.einsum("btd,bsd->bts", h, h).softmax(-1)
            return self.head(torch.einsum(self.spell, weights, h))

    for spell, wrong in (("bts,bsd->btd", False), ("bst,bsd->btd", True)):
        row = softmax_axis(examine(Einsum(spell), reverse)).values["attentions"][0]
        assert (row["off"] > 1e-3) is wrong


@pytest.mark.parametrize(("dim", "wrong"), [(1, False), (-1, True)])
def test_softmax_of_weights_that_multiply_and_are_added_up(
    examine: Examine, dim: int, wrong: bool
) -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.score, self.head = (
                nn.Embedding(V, D),
                nn.Linear(D, 1),
                nn.Linear(D, V),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            weights = self.score(h).softmax(dim)  # (B, T, 1)
            return self.head(h + (weights * h).sum(1, keepdim=True))

    row = softmax_axis(examine(Pooled(), reverse)).values["attentions"][0]
    assert (row["off"] > 1e-3) is wrong


class Memory(Attention):
    """Three learned keys in front of the text; `shift`: how far the diagonal of the mask is moved for them."""

    def __init__(self, spell: str, shift: int, window: int = T) -> None:
        super().__init__()
        self.spell, self.shift, self.window = spell, shift, window
        self.memory = nn.Parameter(torch.randn(3, D))

    def forward(self, x: Tensor) -> Tensor:
        keys = torch.cat([self.memory.expand(len(x), 3, D), x], dim=1)
        q, (_, k, v) = self.qkv(x).chunk(3, dim=-1)[0], self.qkv(keys).chunk(3, dim=-1)
        ones = torch.ones(x.shape[1], keys.shape[1], dtype=torch.bool)
        seen = ones.tril(self.shift) & ~ones.tril(self.shift - self.window)
        if self.spell == "built in":
            return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
        scores = torch.einsum("bqd,bkd->bqk", q, k) / D**0.5
        if self.spell == "added":
            return self.out((scores + (~seen) * -1e9).softmax(-1) @ v)
        return self.out(self.drop(scores.masked_fill(~seen, -torch.inf).softmax(-1)) @ v)


@pytest.mark.parametrize("spell", ["filled", "added", "built in"])
@pytest.mark.parametrize(("shift", "hole"), [(3, 0), (0, 2)])
def test_a_mask_at_the_wrong_corner_hides_the_nearest_tokens(
    examine: Examine, spell: str, shift: int, hole: int
) -> None:
    model = Model()
    model.attention = nn.ModuleList(Memory(spell, shift) for _ in range(2))
    [pair] = dependence(examine(model, next_token)).values["pairs"]
    assert pair.get("hole", 0) == hole
    record = make_record(exams={"dependence": {"pairs": [pair], "attentions": 2}})
    found = attention_blind(record)
    assert isinstance(found, Finding) is (hole > 0)


@pytest.mark.parametrize(("mask", "blind"), [("causal", False), ("only self", True)])
def test_projections_that_start_at_zero_are_told_from_a_wrong_mask(
    examine: Examine, mask: str, blind: bool
) -> None:
    model = Model(mask=mask)
    for attention in model.attention:
        nn.init.zeros_(attention.out.weight)
    [pair] = dependence(examine(model, next_token)).values["pairs"]
    assert pair["other_places"] == 0
    assert (pair["stirred"] > 1e-3) is not blind
    record = make_record(exams={"dependence": {"pairs": [pair], "attentions": 2}})
    assert isinstance(attention_blind(record), Finding) is blind


def test_a_window_that_ends_is_no_hole(examine: Examine) -> None:
    model = Model()
    model.attention = nn.ModuleList(Memory("filled", 3, window=2) for _ in range(2))
    [pair] = dependence(examine(model, next_token)).values["pairs"]
    assert pair.get("hole", 0) == 0


class Sink(Attention):
    """A learned score that takes its share of the weights and brings no value; T keys beside it."""

    def __init__(self, spell: str, dim: int) -> None:
        super().__init__(dim=dim)
        self.spell, self.sink = spell, nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.mT * self.factor  # (B, H, T, T)
        sink = self.sink.expand(len(x), 4, x.shape[1], 1)
        if self.spell == "heads last":  # (B, T, T + 1, H), the sink in front
            scores = torch.cat([sink, scores], dim=-1).permute(0, 2, 3, 1)
            weights = scores.softmax(self.dim)[:, :, 1:].bfloat16().float()
            mixed = torch.einsum("bqkh,bhkd->bhqd", weights, v)
        elif self.spell == "two blocks":
            weights = torch.cat([scores, sink], dim=-1).softmax(self.dim)
            mixed = weights[..., :5] @ v[:, :, :5] + weights[..., 5:-1] @ v[:, :, 5:]
        else:
            mixed = torch.cat([scores, sink], dim=-1).softmax(self.dim)[..., :-1] @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("spell", "right", "wrong"),
    [("behind", -1, -2), ("behind", -1, 1), ("heads last", 2, -1), ("two blocks", -1, 0)],
)
def test_a_sink_takes_its_share_of_the_weights(
    examine: Examine, spell: str, right: int, wrong: int
) -> None:
    for dim, is_wrong in ((right, False), (wrong, True)):
        model = Model(mask="none")
        model.attention = nn.ModuleList(Sink(spell, dim) for _ in range(2))
        for row in softmax_axis(examine(model, reverse)).values["attentions"]:
            assert row["off_at_product"] > 1e-3
            assert (row["off"] > 1e-3) is is_wrong


MIXES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda share, parts: torch.einsum("btk,btkv->btv", share, parts),
    "product": lambda share, parts: (share.unsqueeze(-1) * parts).sum(2),
    "matmul": lambda share, parts: (share.unsqueeze(-2) @ parts).squeeze(-2),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("dim", "wrong"), [(-1, False), (1, True)])
def test_a_mixture_of_distributions_has_its_weights_in_one_factor(
    examine: Examine, mix: str, dim: int, wrong: bool
) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.share, self.parts = nn.Linear(D, 3), nn.Linear(D, 3 * V)

        def forward(self, h: Tensor) -> Tensor:
            parts = self.parts(h).unflatten(-1, (3, V)).softmax(-1)
            return MIXES[mix](self.share(h).softmax(dim), parts)

    model = Model()
    model.head = Mixed()
    rows = softmax_axis(examine(model, reverse)).values["attentions"]
    assert any(row["off"] > 1e-3 for row in rows) is wrong


def test_weights_normalised_over_queries_and_keys_together(examine: Examine) -> None:
    class Joint(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = q @ k.mT  # (B, T, T): one softmax over all of it
            return self.out(scores.flatten(1).softmax(-1).view_as(scores) @ v)

    model = Model()
    model.attention = nn.ModuleList(Joint() for _ in range(2))
    rows = softmax_axis(examine(model, reverse)).values["attentions"]
    assert [row["off"] for row in rows] == [pytest.approx(1 - 1 / T, abs=0.02)] * 2


@pytest.mark.parametrize(("factor", "scale"), [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)])
def test_the_factor_on_scores_is_read_from_the_tape(
    examine: Examine, factor: float, scale: float
) -> None:
    result = attention_scores(examine(Model(factor=factor), next_token))
    row = result.values["attentions"][0]
    assert row["length"] == 4
    assert row["scale"] == pytest.approx(scale)
    assert row["spread"] > 0.05  # nothing normalises queries and keys here


class Cosine(Attention):
    """Normalised queries and keys, with a temperature that is fixed or learned, in several spellings."""

    def __init__(self, spell: str, temperature: float) -> None:
        super().__init__()
        self.spell, self.temperature = spell, temperature
        if "learned" in spell:
            self.log = nn.Parameter(torch.tensor(math.log(temperature)))
        if "gain" in spell:
            self.gain = nn.Parameter(torch.full((D,), temperature))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = F.normalize(q, dim=-1), k / k.norm(dim=-1, keepdim=True)
        t = self.log.exp() if "learned" in self.spell else self.temperature
        if self.spell == "after":
            mixed = (q @ k.mT * t).softmax(-1) @ v
        elif self.spell == "einsum":
            mixed = (torch.einsum("bqd,bkd->bqk", q, k) / (1 / t)).softmax(-1) @ v
        elif "gain" in self.spell:
            mixed = F.scaled_dot_product_attention(q * self.gain, k, v, scale=1.0)
        else:
            mixed = F.scaled_dot_product_attention(q * t, k, v, scale=1.0)
        return self.out(mixed)


def cosine_model(spell: str, temperature: float) -> Model:
    model = Model(mask="none")
    model.attention = nn.ModuleList(Cosine(spell, temperature) for _ in range(2))
    return model


@pytest.mark.parametrize("temperature", [12.0, 1 / 12])
@pytest.mark.parametrize("spell", ["after", "einsum", "before", "before, learned", "before, gain"])
def test_the_reach_of_cosine_scores_is_their_temperature(
    examine: Examine, spell: str, temperature: float
) -> None:
    patient = examine(cosine_model(spell, temperature), classify_all)
    rows = attention_scores(patient).values["attentions"]
    assert [row["reach"] for row in rows] == [pytest.approx(temperature, rel=1e-3)] * 2
    assert {row["keys"] for row in rows} == {T}
    assert {row["learned"] for row in rows} == {"learned" in spell or "gain" in spell}
    plain = attention_scores(examine(Model(), next_token)).values["attentions"]
    assert {row["reach"] for row in plain} == {None}


def test_shallow_copies_are_told_from_deep_ones(examine: Examine) -> None:
    for copier, times in ((copy.copy, 1), (copy.deepcopy, 0)):
        model = Model()
        model.mlp = nn.ModuleList([model.mlp[0], copier(model.mlp[0])])
        assert len(sharing(examine(model, next_token)).values["copied"]) == times


def test_skip_paths_are_counted(examine: Examine) -> None:
    sound = residual(examine(Model(), next_token)).values
    assert (sound["attentions"], sound["attentions_bypassed"]) == (2, 2)
    assert sound["activations_bypassed"] == 2
    sick = residual(examine(Model(skip=False), next_token)).values
    assert (sick["attentions"], sick["attentions_bypassed"], sick["additions"]) == (2, 0, 0)


def test_a_pass_that_was_given_up_has_no_skip_paths_to_count(examine: Examine) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not with these sizes")

    abandoned = Model(skip=False)
    abandoned.head = Fails()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with pytest.raises(ValueError, match="sizes"):
            abandoned(ids[:, :T])
        return next_token(model, ids)

    values = residual(examine(Model(), loss)).values
    assert (values["attentions"], values["attentions_bypassed"]) == (2, 2)
    assert (values["activations"], values["activations_bypassed"]) == (2, 2)


class GraphAttention(nn.Module):
    """Scores of pairs of neighbours by two vectors, as graph attention networks have them."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.w, self.a, self.b = nn.Linear(width, out), nn.Linear(out, 1), nn.Linear(out, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.w(x)
        scores = F.leaky_relu(self.a(h) + self.b(h).mT, 0.2).masked_fill(~edges, -torch.inf)
        return scores.softmax(-1) @ h


def test_two_graph_attentions_have_no_way_around_them_and_nodes_reach_the_loss(
    examine: Examine,
) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(V, D)
            self.one, self.two = GraphAttention(D, 8), GraphAttention(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            apart = (torch.arange(T)[:, None] - torch.arange(T)).abs()
            h = F.elu(self.one(self.token(x), apart < 3))
            return self.two(h, apart < 3)

    values = residual(examine(Graph(), classify_all)).values
    assert (values["attentions"], values["attentions_bypassed"]) == (2, 0)


@pytest.mark.parametrize("gated", [True, False])
def test_a_gated_cell_is_a_way_around(examine: Examine, gated: bool) -> None:
    """Slots that ask the same inputs again and again, what they hold kept by a GRU cell or thrown away."""

    class Slots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.slots = nn.Embedding(V, D), nn.Parameter(torch.randn(1, T, D))
            self.cell, self.head = nn.GRUCell(D, D), nn.Linear(D, V)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.token(ids)
            held = self.slots.expand_as(x)
            for _ in range(3):
                seen = (held @ x.transpose(1, 2)).softmax(-1) @ x
                kept = self.cell(seen.flatten(0, 1), held.flatten(0, 1)).view_as(held)
                held = kept if gated else seen
            return self.head(held)

    values = residual(examine(Slots(), next_token)).values
    assert values["attentions"] == 3
    assert values["attentions_bypassed"] == (3 if gated else 0)


@pytest.mark.parametrize("bias", [5.0, -1.5])
def test_how_much_gates_let_around(examine: Examine, bias: float) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head, self.gate = nn.Embedding(V, D), nn.Linear(D, V), nn.Linear(D, D)
            self.attention = nn.MultiheadAttention(D, 2, batch_first=True)
            nn.init.constant_(self.gate.bias, bias)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.token(ids)
            t = torch.sigmoid(self.gate(x))
            return self.head(t * self.attention(x, x, x, need_weights=False)[0] + (1 - t) * x)

    (found,) = residual(examine(Gated(), next_token)).values["summands"]
    assert found["carry"] == pytest.approx(1 / (1 + math.exp(bias)), abs=0.1)
    plain = residual(examine(Model(), next_token)).values["summands"]
    assert {s["carry"] for s in plain} == {None}


def test_dead_units(examine: Examine) -> None:
    assert dead_units(examine(Model(), next_token)).values["layers"][0]["dead"] < 0.5
    assert dead_units(examine(Model(bias=-50.0), next_token)).values["layers"][0]["dead"] == 1.0


@pytest.mark.parametrize("threshold", [0.0, 50.0])
@pytest.mark.parametrize("how", ["product", "where"])
def test_dead_units_of_an_activation_written_by_hand(
    examine: Examine, how: str, threshold: float
) -> None:
    class Jump(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.up, self.down = (
                nn.Embedding(V, D),
                nn.Linear(D, 4 * D),
                nn.Linear(4 * D, V),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.up(self.token(x))
            if how == "product":
                return self.down(h * (h > threshold).float())
            return self.down(torch.where(h > threshold, h, 0.0))

    (layer,) = dead_units(examine(Jump(), next_token)).values["layers"]
    assert layer["dead"] == (1.0 if threshold else 0.0)


def test_a_hinge_of_the_loss_is_no_activation(examine: Examine) -> None:
    def with_penalty(model: nn.Module, ids: Tensor) -> Tensor:
        return next_token(model, ids) + torch.relu(model.token(ids).square() - 1e3).mean()

    layers = dead_units(examine(Model(), with_penalty)).values["layers"]
    assert [layer["dead"] == 1.0 for layer in layers] == [False] * len(layers)


def test_scale_at_initialisation(examine: Examine) -> None:
    sound = init_scale(examine(Model(), next_token)).values
    assert 0.9 < sound["loss_ratio"] < 1.3
    large = init_scale(examine(Model(init=3.0), next_token)).values
    assert large["loss_ratio"] > 2
    assert large["weight_scale"] > 5
    assert init_scale(examine(Model(init=1e-5), next_token)).values["weight_scale"] < 1e-3


@pytest.mark.parametrize("spell", ["factor", "logits of a small width", "tied table", "matrices"])
def test_wide_scores_come_of_large_weights_or_of_a_factor(examine: Examine, spell: str) -> None:
    """muP and its like multiply embeddings and scores by numbers; the weights start as they should."""
    model = Model(init=3.0 if spell == "matrices" else None)
    if spell == "tied table":
        model.head.weight = model.token.weight

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        scores = model(ids[:, :T])
        if spell == "factor":
            scores = 12.0 * scores
        elif "width" in spell:
            scores = scores / (D / 256)
        return F.cross_entropy(scores.flatten(0, 1), ids[:, 1 : T + 1].flatten())

    result = init_scale(examine(model, loss))
    assert result.values["loss_ratio"] > 1.8
    sick = spell in ("tied table", "matrices")
    assert isinstance(init_too_large(make_record(exams=[result])), Finding if sick else Clear)


def test_input_dependence_falls_to_zero_where_the_input_is_lost(examine: Examine) -> None:
    assert input_dependence(examine(Model(), next_token)).values["last"] > 0.01
    lost = input_dependence(examine(Model(bias=-50.0, skip=False), next_token)).values
    assert lost["last"] < 1e-6


def test_axes_of_normalisation(examine: Examine) -> None:
    class OverTime(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LayerNorm(T)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.transpose(1, 2)).transpose(1, 2)

    sound = normalisation(examine(Model(), next_token)).values["norms"]
    assert {tuple(n["axes"]) for n in sound} == {("feature",)}
    sick = normalisation(examine(Model(norm=OverTime), next_token)).values["norms"]
    assert sick[0]["axes"] == ["time"]


@pytest.mark.parametrize("how", ["counted", "counted, last ignored", "ignored", "weighted"])
def test_padding_is_asked_of_the_loss(examine: Examine, how: str) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.clone()
        for row in range(B):
            ids[row, 6 + row :] = 0
        x, y = ids[:, :T], ids[:, 1 : T + 1].clone()
        if "last" in how:
            y[:, -1] = -100  # as libraries do that shift labels themselves
        scores = model(x).transpose(1, 2)
        if how == "weighted":
            return (F.cross_entropy(scores, y, reduction="none") * (y != 0)).sum() / (y != 0).sum()
        return F.cross_entropy(scores, y, ignore_index=0 if how == "ignored" else -100)

    pair = first(examine(Model(), loss), padding)
    # What ignore_index takes out is no target: there is no tail to have a length.
    assert pair["lengths_vary"] is (how != "ignored")
    assert (pair["counted"] > 0.25) is ("counted" in how)


def test_sharing_tells_a_list_of_one_block_from_a_loop(examine: Examine) -> None:
    listed = Model()
    listed.mlp = nn.ModuleList([listed.mlp[0]] * 2)
    twice = sharing(examine(listed, next_token)).values["listed"][0]
    assert (twice["times"], twice["in_depth"]) == (2, True)
    assert sharing(examine(Model(), next_token)).values["listed"] == []

    class Loop(Model):
        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            for _ in range(3):
                h = h + self.attention[0](self.norm[0](h))
            return self.head(h)

    looped = sharing(examine(Loop(), next_token)).values
    assert looped["listed"] == []
    assert {row["uses"] for row in looped["reused"]} == {3}


def test_one_layer_under_two_names_is_told_from_two_towers(examine: Examine) -> None:
    class Named(Model):
        def __init__(self, *, towers: bool) -> None:
            super().__init__()
            self.left = self.right = nn.Linear(D, D)
            self.towers = towers

        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            other = self.token(x.flip(1)) if self.towers else h
            return self.head(self.left(h) + torch.tanh(self.right(other)))

    class Heads(Model):
        def __init__(self) -> None:
            super().__init__()
            layers = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, V))
            self.heads = nn.ModuleDict(dict.fromkeys("ab", layers))

        def forward(self, x: Tensor) -> Tensor:
            h = self.token(x)
            return self.heads["a"](h) + self.heads["b"](h)

    assert sharing(examine(Heads(), next_token)).values["aliased"][0]["uses"] == 2
    mistake = sharing(examine(Named(towers=False), next_token)).values["aliased"]
    assert mistake == [{"modules": ["left", "right"], "uses": 2}]
    assert sharing(examine(Named(towers=True), next_token)).values["aliased"] == []


def test_exams_leave_no_trace(examine: Examine) -> None:
    model = Model()
    patient = examine(model, next_token, steps=2)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    kept = {name: None if g is None else g.clone() for name, g in gradients.items()}
    random = torch.get_rng_state()
    for exam in (shift, dependence, positions, softmax_axis, attention_scores, init_scale):
        exam(patient)
    for exam in (residual, dead_units, input_dependence, normalisation, padding, sharing):
        exam(patient)
    assert torch.equal(random, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert parameter.grad is gradients[name]
        if kept[name] is not None:
            assert torch.equal(parameter.grad, kept[name])
