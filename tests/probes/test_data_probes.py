"""Targets, ladder, batches, order and relatedness: driven by hand-made events, read from a real record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from traindoctor.events import (
    BackwardEnd,
    BatchFetched,
    Event,
    ForwardBegin,
    LossCalled,
    TokensEmbedded,
)
from traindoctor.probes.base import Probe
from traindoctor.probes.batches import Batches
from traindoctor.probes.label_order import LabelOrder, redealt_z
from traindoctor.probes.ladder import CountModel, Ladder, Unigram, context_hashes
from traindoctor.probes.number_order import NumberOrder
from traindoctor.probes.relatedness import Relatedness, by_features, by_rows
from traindoctor.probes.target_numbers import TargetNumbers
from traindoctor.probes.targets import Targets
from traindoctor.record import Record, RecordWriter, open_record

WEIGHT = torch.zeros(64, 4)


def events(
    x: torch.Tensor, logits: torch.Tensor, y: torch.Tensor, **settings: object
) -> list[Event]:
    kind = str(settings.pop("kind", "cross_entropy"))
    output = getattr(F, kind)(logits, y, **settings)
    loss = LossCalled(
        kind,
        logits,
        y,
        output,
        str(settings.get("reduction", "mean")),
        int(settings.get("ignore_index", -100)),  # type: ignore[call-overload]
        None,
        float(settings.get("label_smoothing", 0.0)),  # type: ignore[arg-type]
        True,
    )
    model = torch.nn.Linear(1, 1)
    begin = ForwardBegin(model, (x,), {}, True, True)
    if x.is_floating_point():
        return [begin, loss, BackwardEnd((output,), 0.0)]
    places = TokensEmbedded(torch.arange(x.shape[-1]), WEIGHT, True)
    return [begin, TokensEmbedded(x, WEIGHT, True), places, loss, BackwardEnd((output,), 0.0)]


def run(folder: Path, probe: Probe, steps: list[list[Event]]) -> Record:
    writer = RecordWriter(folder)
    for step, happened in enumerate(steps):
        for event in happened:
            probe.on(event, due=True)
        probe.close_step(step, writer, due=True)
    writer.close()
    return open_record(folder)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_token_is_the_mean_over_valid_targets(
    tmp_path: Path, reduction: str, smoothing: float
) -> None:
    torch.manual_seed(0)
    logits, y = torch.randn(6, 11), torch.tensor([1, 2, -100, 3, -100, 9])
    step = events(y, logits, y, reduction=reduction, label_smoothing=smoothing)
    record = run(tmp_path, Targets(), [step])
    expected = F.cross_entropy(logits, y).item()
    assert record["loss.token"].last == pytest.approx(expected, rel=1e-6)
    assert (record["target.valid"].last, record["target.total"].last) == (4.0, 6.0)
    assert record.fact("loss.site")["classes"] == 11


def test_of_several_squared_errors_the_best_learned_speaks(tmp_path: Path) -> None:
    """A code book's error stands beside codes that hardly vary; the reconstruction is learned."""
    torch.manual_seed(0)
    x, codes = torch.randn(32, 8), 0.1 * torch.randn(32, 8)
    book = events(x, codes + 1.0, codes, kind="mse_loss")
    rebuilt = events(x, x + 0.1, x, kind="mse_loss")
    pass_of_both = [*book[:-1], *rebuilt]
    further = events(x, x, x, kind="mse_loss")
    record = run(tmp_path, TargetNumbers(), [pass_of_both, [*book, *further]])
    assert record["loss.squared"].values == pytest.approx([0.01, 1.0], rel=1e-4)
    variance = [t.var(dim=0, unbiased=False).mean().item() for t in (x, codes)]
    assert record["target.variance"].values == pytest.approx(variance, rel=1e-5)


def test_unigram_rung_is_the_entropy_and_bigram_sees_the_last_token() -> None:
    random = np.random.default_rng(0)
    follow = random.permutation(16)  # y is a function of x: the bigram rung goes to 0
    model = CountModel(16)
    for _ in range(60):
        x = random.integers(0, 16, (8, 32))
        y = follow[x].reshape(-1)
        hashes = context_hashes(x, 4).reshape(4, -1)
        scores = model.score(hashes, y).mean(axis=1)
        model.count(hashes, y)
    assert scores[0] == pytest.approx(math.log(16), abs=0.02)
    assert scores[1] < 0.02
    assert np.isfinite(scores).all()


def test_probabilities_of_every_order_sum_to_one() -> None:
    random = np.random.default_rng(1)
    model = CountModel(7)
    x = random.integers(0, 7, (4, 50))
    hashes = context_hashes(x, 4).reshape(4, -1)
    model.count(hashes, random.integers(0, 7, 200))
    one = hashes[:, 120:121].repeat(7, axis=1)
    total = np.exp(-model.score(one, np.arange(7))).sum(axis=1)
    np.testing.assert_allclose(total, 1.0, atol=1e-12)


def test_ladder_lies_between_ln_v_and_zero_and_is_scored_before_counted(tmp_path: Path) -> None:
    torch.manual_seed(0)
    chain = torch.cumsum(torch.randint(0, 2, (8, 33)), 1) % 32
    step = events(chain[:, :-1], torch.randn(256, 32), chain[:, 1:].reshape(-1))
    one = run(tmp_path / "one", Unigram(), [step] * 3)["ladder.unigram"]
    more = run(tmp_path / "more", Ladder(), [step] * 3)
    assert one.first == pytest.approx(math.log(32))
    assert more["ladder.fivegram"].last < more["ladder.bigram"].last < one.last


def test_labels_without_places_have_one_rung_only(tmp_path: Path) -> None:
    step = events(torch.randint(0, 64, (8, 10)), torch.randn(8, 3), torch.randint(0, 3, (8,)))
    assert run(tmp_path / "one", Unigram(), [step] * 3)["ladder.unigram"].last < 1.3
    assert not run(tmp_path / "more", Ladder(), [step] * 3).has("ladder.bigram")


def test_same_rows_in_another_order_are_the_same_set(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randint(0, 64, (8, 10)), torch.randint(0, 3, (8,))
    other = torch.randint(0, 64, (8, 10))
    logits = torch.randn(8, 3)
    steps = [events(x, logits, y), events(x.flip(0), logits, y.flip(0)), events(other, logits, y)]
    record = run(tmp_path, Batches(), steps)
    rowset, fingerprint = record["batch.rowset"].values, record["batch.fingerprint"].values
    assert rowset[0] == rowset[1] != rowset[2]
    assert len(set(fingerprint)) == 3
    assert record["batch.new_rows"].values.tolist() == [1.0, 0.0, 1.0]
    assert record["batch.tokens"].last == 80


def test_dense_inputs_are_read_at_the_model_arguments(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3, 40, 40), torch.randint(0, 3, (4,))
    step = events(x, torch.randn(4, 3), y)
    again = events(torch.randn(4, 3, 40, 40), torch.randn(4, 3), y)
    record = run(tmp_path, Batches(), [step, step, again])
    rowset = record["batch.rowset"].values
    assert rowset[0] == rowset[1] != rowset[2]


def test_classes_in_order_stand_out_and_shuffled_ones_do_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, logits = torch.randint(0, 64, (16, 10)), torch.randn(16, 4)
    ordered = [events(x, logits, torch.full((16,), step // 4 % 4)) for step in range(25)]
    record = run(tmp_path / "ordered", LabelOrder(), ordered)
    assert record["order.label_z"].last > 50
    mixed = [events(x, logits, torch.randint(0, 4, (16,))) for _ in range(25)]
    record = run(tmp_path / "mixed", LabelOrder(), mixed)
    assert abs(record["order.label_z"].last) < 4
    # The same labels asked of two views of the rows are labels once.
    views = []
    for _ in range(25):
        y = torch.randint(0, 4, (16,))
        views.append(events(x, logits, y) + events(torch.randint(0, 64, (16, 10)), logits, y))
    record = run(tmp_path / "views", LabelOrder(), views)
    assert abs(record["order.label_z"].last) < 4


@pytest.mark.parametrize(
    ("course", "ordered"),
    [
        (lambda step: (0, 1) if step < 30 else (2, 3, 4, 5), False),  # two stages
        (lambda step: (0, 1) if step < 40 else (0, 1, 2, 3), False),
        (lambda step: (0, 1) if step < 25 else (0, 1, 1, 1), False),
        (lambda step: (step // 25,), True),  # two classes in order
        (lambda step: (step // 10,), True),
        (lambda step: (0, 1) if step // 5 % 2 else (2, 3), True),  # halves that come again
        (lambda step: (step // 13, step // 12), True),  # batches on the border hold both
    ],
)
def test_two_stages_with_other_labels_are_told_from_an_order(
    tmp_path: Path, course: Callable[[int], tuple[int, ...]], ordered: bool
) -> None:
    torch.manual_seed(0)
    x, logits = torch.randint(0, 64, (16, 10)), torch.randn(16, 6)
    steps = []
    for step in range(50):
        labels = torch.tensor(course(step))
        steps.append(events(x, logits, labels[torch.randint(0, len(labels), (16,))]))
    z = run(tmp_path, LabelOrder(), steps)["order.label_z"].last
    assert (z > 10) if ordered else (abs(z) < 4)


@pytest.mark.parametrize("shape", [(16,), (16, 1), (16, 30)])
def test_numbers_in_order_are_told_from_numbers_dealt_at_random(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 5)
    sites = [3.0 * (step // 10) + torch.randn(shape) for step in range(50)]
    mixed = torch.cat(sites)[torch.randperm(16 * 50)].split(16)
    found = []
    for name, targets in (("ordered", sites), ("mixed", mixed)):
        steps = [events(x, torch.zeros_like(y), y, kind="mse_loss") for y in targets]
        record = run(tmp_path / name, NumberOrder(), steps)
        found.append((record["order.number_z"].last, record["order.number_neighbour_z"].last))
    assert found[0][0] > 50
    assert found[0][1] > 4
    assert max(map(abs, found[1])) < 4


def test_targets_of_a_text_that_was_looked_up_unheard_are_no_labels(tmp_path: Path) -> None:
    """A compiled model: its arguments are seen, its look-ups are not; the loss is taken over pieces of the text."""
    steps = []
    for step in range(25):
        x, logits = torch.randint(0, 64, (4, 16)), torch.randn(16, 4)
        begin, _, _, *rest = events(x, logits, torch.full((16,), step // 4 % 4))
        steps.append([begin, *rest])
    assert not run(tmp_path / "text", LabelOrder(), steps).has("order.label_z")
    for step in steps:
        step[0] = dataclasses.replace(step[0], args=(torch.randn(16, 7),))
    assert run(tmp_path / "features", LabelOrder(), steps)["order.label_z"].last > 50


def test_contrastive_targets_have_no_order(tmp_path: Path) -> None:
    step = events(torch.randint(0, 64, (16, 10)), torch.randn(16, 16), torch.arange(16))
    assert not run(tmp_path, LabelOrder(), [step] * 25).has("order.label_z")


def test_balanced_batches_are_no_fault() -> None:
    balanced = [np.random.default_rng(i).permutation(np.arange(16) % 4) for i in range(30)]
    z = redealt_z(balanced)
    assert z is not None
    assert z < 0


@pytest.mark.parametrize("apart", [False, True])
def test_relation_between_inputs_and_labels(tmp_path: Path, apart: bool) -> None:
    torch.manual_seed(0)
    steps = []
    for _ in range(12):
        y = torch.randint(0, 4, (32,))
        x = torch.randint(8, 64, (32, 10))
        x[:, 3] = y  # one token names the class
        steps.append(events(x, torch.randn(32, 4), y[torch.randperm(32)] if apart else y))
    z = run(tmp_path, Relatedness(), steps)["relation.z"]
    assert (abs(z.last) < 4) if apart else (z.last > 20)


def test_relation_of_dense_inputs_to_several_labels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    steps = []
    for _ in range(12):
        x = torch.randn(32, 20)
        y = (x[:, :5] > 0).float()
        steps.append(events(x, torch.randn(32, 5), y, kind="binary_cross_entropy_with_logits"))
    assert run(tmp_path, Relatedness(), steps)["relation.z"].last > 20


@given(n=st.integers(5, 40), P=st.integers(1, 12), Q=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_both_ways_to_the_relation_agree(n: int, P: int, Q: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, P)).astype(np.float32)
    y = random.standard_normal((n, Q)).astype(np.float32)
    order = random.permutation(n)
    exact = float(np.square(x.T.astype(np.float64) @ y[order]).sum())
    assert by_features(x, y)(order) == pytest.approx(exact, rel=1e-5)
    assert by_rows(x, y)(order) == pytest.approx(exact, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_that_a_loader_gives_twice_in_a_row(tmp_path: Path, workers: int) -> None:
    """Also where a step takes several batches, and beside another loader."""
    drawn = torch.arange(48).reshape(12, 4)
    steps: list[list[Event]] = []
    for k in range(0, 12, 2):
        batches = [drawn[(k + j) // workers] for j in range(2)]
        fetched: list[Event] = [BatchFetched((x, {"y": x + 1}), 0.0, 12) for x in batches]
        steps.append([*fetched, BatchFetched(torch.ones(3), 0.0, 3)])
    record = run(tmp_path, Batches(), steps)
    again = record["loader.again"].values
    # The other loader gives the same at every step, from its second on; of the two batches the second is the first.
    expected = [(0 if workers == 1 else 1) + (k > 0) for k in range(6)]
    np.testing.assert_allclose(again, np.array(expected) / 3)
