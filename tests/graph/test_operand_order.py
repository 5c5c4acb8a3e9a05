"""Who divides by whom and what is subtracted from what, also where torch reports the operands the other way round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.exams.attention_scores import scale_of
from traindoctor.exams.softmax_axis import contracted_axis
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.squares import BY_HAND
from traindoctor.graph.structure import Structure
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape

N, V = 4, 5


def taped(loss: Callable[[Tensor], Tensor], size: int = V) -> StepTape:
    torch.manual_seed(0)
    model = nn.Linear(3, size)
    rows = torch.randn(N, 3)
    return tape_step(lambda: loss(model(rows)), model)


@pytest.mark.parametrize(
    "less",
    [
        lambda scores, total: scores - total,
        lambda scores, total: torch.rsub(total, scores),
        lambda scores, total: total.__rsub__(scores),
    ],
)
def test_scores_less_their_logsumexp_are_scores(less: Callable[[Tensor, Tensor], Tensor]) -> None:
    targets = torch.randint(V, (N, 1))
    tape = taped(lambda scores: -less(scores, scores.logsumexp(-1, True)).gather(1, targets).mean())
    (site,) = loss_sites(tape)
    assert site.kind == "logsumexp_gather"
    assert tape.producer[site.logits].kind == "linear"


@pytest.mark.parametrize("beside", [False, True])
def test_a_softmax_in_the_memory_of_a_copy_gives_probabilities(beside: bool) -> None:
    """Also where the scores are normalised once more for another term (distillation)."""
    targets = torch.randint(V, (N,))

    def loss(scores: Tensor) -> Tensor:
        other = (scores / 2).log_softmax(-1).mean() if beside else 0.0
        p = scores.detach().clone()  # as in the forward pass of a Function
        p -= p.max(1, keepdim=True).values
        p.exp_()
        p /= p.sum(1, keepdim=True)
        return other + scores.sum() - p[torch.arange(N), targets].log().mean()

    assert [site.kind for site in loss_sites(taped(loss))] == ["probability_gather"]


def test_a_power_of_two_is_no_square() -> None:
    target = torch.randn(N, V)
    squares = taped(lambda scores: ((scores - target) ** 2).mean())
    assert [site.kind for site in loss_sites(squares)] == [BY_HAND]
    assert not loss_sites(taped(lambda scores: (2 ** (scores - target)).mean()))


def test_only_a_divisor_is_a_factor() -> None:
    half, inverse = (
        taped(lambda scores: (scores / 2).sum()),
        taped(lambda scores: (2 / scores).sum()),
    )
    factors = [
        Structure(tape).scalar_factor(next(op for op in tape.ops if op.kind == "div"))
        for tape in (half, inverse)
    ]
    assert factors == [0.5, None]


@pytest.mark.parametrize("swapped", [False, True])
def test_products_are_read_in_the_order_of_the_formula(swapped: bool) -> None:
    """Queries and keys of 6, values of 2."""

    def product(one: Tensor, other: Tensor) -> Tensor:
        return other.__rmatmul__(one) if swapped else one @ other

    def attention(mixed: Tensor) -> Tensor:
        q, k, v = mixed.split([6, 6, 2], dim=-1)
        return product(product(q, k.mT).softmax(-1), v).square().mean()

    structure = Structure(taped(attention, 14))
    (found,) = structure.attentions
    assert contracted_axis(structure, found) == -1
    scores = found.op.args[0]
    assert isinstance(scores, Ref)
    assert scale_of(structure, scores)[:2] == (1.0, 6)


def test_inverse_weights_are_no_attention() -> None:
    weights, inverse = (
        taped(lambda scores: (scores.softmax(-1) @ scores.mT).sum()),
        taped(lambda scores: ((1 / scores.softmax(-1)) @ scores.mT).sum()),
    )
    assert [len(Structure(tape).attentions) for tape in (weights, inverse)] == [1, 0]
