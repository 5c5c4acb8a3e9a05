"""A tape for data of other sizes: numbers that follow them, tables that are cut, and what cannot be followed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from short_runs import run
from traindoctor.errors import ReplayError
from traindoctor.experiment.batches import map_data
from traindoctor.experiment.stretch import Sizes, same_functions, widest
from traindoctor.tape.execute import replay

B, V, D, H = 3, 11, 8, 2
LENGTH, COUNT = ("x", 1), ("x", 0)
size = st.integers(2, 400)


def sizes(first: tuple[int, int], second: tuple[int, int]) -> Sizes:
    return Sizes.of([("x", torch.empty(first), torch.empty(second))])


@given(a=size, b=size, c=size, factor=st.integers(1, 64), more=st.integers(-3, 64))
def test_a_number_follows_the_size_that_differs(a, b, c, factor, more) -> None:
    assume(a != b)
    found = sizes((4, a), (4, b))
    for expected in (lambda n: n, lambda n: factor * n, lambda n: n + more, lambda n: 500 - n):
        assert found.rule(expected(a), expected(b))({LENGTH: c}) == expected(c)


@given(first=st.tuples(size, size), second=st.tuples(size, size), third=st.tuples(size, size))
def test_a_product_of_two_sizes_is_followed(first, second, third) -> None:
    assume(first[0] != second[0] and first[1] != second[1] and first != second[::-1])
    assume(len({(first[0], second[0]), (first[1], second[1])}) == 2)
    one, other = first[0] * first[1], second[0] * second[1]
    slopes = [(other - one) / (second[i] - first[i]) for i in (0, 1)]
    assume(
        not any(slope == int(slope) for slope in slopes)
    )  # else it may be a multiple of one of them
    rule = sizes(first, second).rule(one, other)
    assert rule({COUNT: third[0], LENGTH: third[1]}) == third[0] * third[1]


def test_a_number_that_follows_no_size_is_refused() -> None:
    with pytest.raises(ReplayError, match="does not follow from"):
        sizes((4, 10), (4, 14)).rule(7, 9)


@pytest.mark.parametrize("power", [1, -1])
def test_a_float_follows_a_size_or_its_inverse(power) -> None:
    rule = sizes((4, 10), (4, 14)).rule_of_float(0.3 * 10**power, 0.3 * 14**power)
    assert rule is not None
    assert rule({LENGTH: 25}) == pytest.approx(0.3 * 25**power)
    assert sizes((4, 10), (4, 14)).rule_of_float(0.3, 0.7) is None


def test_the_widest_table_begins_as_the_others_do() -> None:
    mask = torch.ones(6, 6).tril()
    assert torch.equal(widest([mask[:4, :4], mask, mask[:5, :5]]), mask)
    with pytest.raises(ReplayError, match="cannot be traced"):
        widest([mask, mask[:4, :4].flip(0)])


class Attention(nn.Module):
    """Sizes of every kind: a table of angles, a mask by hand, views, products, an inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.qkv = nn.Linear(D, 3 * D)
        self.head = nn.Linear(D, V)

    def forward(self, x: Tensor) -> Tensor:
        b, t = x.shape
        angles = torch.arange(t, dtype=torch.float32)[:, None] / 10 ** torch.arange(D)
        h = self.embed(x) + angles.sin()
        q, k, v = self.qkv(h).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (D // H) ** 0.5
        scores = scores.masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b * t, D)
        return self.head(h.reshape(-1, D) + mixed)


def losses_by_length(tmp_path, lengths: list[int], rows: list[int], make=Attention):
    from traindoctor.capture.watch import Watch

    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        model = make()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for t, b in zip(lengths, rows):
            x = torch.randint(V, (b, t))
            y = (3 * x + 1) % V
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y.view(-1), reduction="sum") * (1 / (b * t))
            loss.backward()
            optimizer.step()
    finally:
        watch.end()
    return watch


@pytest.mark.parametrize("rows", [[B] * 6, [3, 5, 4, 2, 7, 6]], ids=["lengths", "rows too"])
def test_the_loss_of_another_step_is_its_own(tmp_path, rows) -> None:
    watch = losses_by_length(tmp_path, [9, 12, 7, 11, 12, 5], rows)
    tapes, logs = watch.patient.tapes, watch.patient.snapshot.logs
    steps = sorted(tapes)
    base, others = tapes[steps[0]], [(tapes[s], logs[s]) for s in steps]
    assert same_functions(base, tapes[steps[1]])
    data = map_data(base, logs[steps[0]], others).stretched(logs[steps[0]], others)
    parameters = {name: leaf.value for name, leaf in tapes[steps[1]].parameters.items()}
    log = logs[steps[1]]
    replayed = replay(
        data.tape_for(log),
        parameters=parameters,
        batch=data.batch(log),
        substitute=data.substitute(log),
        gradients=True,
    )
    assert float(replayed.loss.detach()) == pytest.approx(log.loss, rel=1e-6)
    expected = replay(tapes[steps[1]], gradients=True).gradients()
    for name, gradient in replayed.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-7)


def test_data_longer_than_every_table_does_not_fit(tmp_path) -> None:
    watch = losses_by_length(tmp_path, [9, 12, 7, 11, 20, 5], [B] * 6)
    tapes, logs = watch.patient.tapes, watch.patient.snapshot.logs
    others = [(tapes[s], logs[s]) for s in sorted(tapes)]
    data = map_data(*others[0], others).stretched(others[0][1], others)
    assert 4 not in tapes
    assert [data.fits(logs[s]) for s in (2, 3, 4)] == [True, True, False]


class Branching(nn.Module):
    """Long rows go another way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(h.tanh() if x.shape[1] > 10 else h).flatten(0, 1)


def test_only_steps_that_ran_the_same_functions_are_compared(tmp_path) -> None:
    watch = losses_by_length(tmp_path, [9, 12, 7, 11, 12, 5], [B] * 6, Branching)
    tapes, logs = watch.patient.tapes, watch.patient.snapshot.logs
    others = [(tapes[s], logs[s]) for s in (0, 1, 2)]
    data = map_data(*others[0], others).stretched(others[0][1], others)
    parameters = {name: leaf.value for name, leaf in tapes[2].parameters.items()}
    replayed = replay(
        data.tape_for(logs[2]),
        parameters=parameters,
        batch=data.batch(logs[2]),
        substitute=data.substitute(logs[2]),
    )
    assert float(replayed.loss) == pytest.approx(logs[2].loss, rel=1e-6)


def test_one_size_alone_cannot_be_stretched(tmp_path) -> None:
    watch, _, _ = run(tmp_path)
    tapes, logs = watch.patient.tapes, watch.patient.snapshot.logs
    others = [(tapes[s], logs[s]) for s in sorted(tapes) if s in logs]
    data = map_data(*others[0], others)
    with pytest.raises(ReplayError, match="other sizes"):
        data.stretched(others[0][1], others)
