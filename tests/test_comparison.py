"""Where the perturbation begins, and what is said of the ground that two sides stand on."""

import pytest

from compare.made_traces import changed, trace, transformer
from traindoctor.compare.terms import align
from traindoctor.compare.tolerance import Distance
from traindoctor.compare.trace import Entry, Key
from traindoctor.comparison import Options, _equal_bits, _judged, _other_grounds

# In the order of a trace: the gradients of the outputs, then those of all weights at once, then all updates.
MADE = transformer()
FIRST_OUTPUT_LAST = ("gradient", 0, "embedding")


def start(*differ: Key) -> Key | None:
    """Of two sides that differ in these tensors."""

    def change(one: Entry, values):
        return values + 1 if one.key in differ else values

    same, found = _equal_bits(align(trace(MADE), trace(changed(MADE, change))))
    assert not same
    return found


@pytest.mark.parametrize("name", ["blocks.0.norm.weight", "blocks.1.mlp.down.weight"])
def test_before_the_backward_pass_has_ended_no_gradient_of_a_weight_counts(name: str) -> None:
    assert start(("gradient", 0, name)) == FIRST_OUTPUT_LAST


def test_an_update_that_differs_starts_behind_all_gradients() -> None:
    gradients = [one.key for one in MADE if one.kind == "gradient"]
    assert start(("update", 0, "blocks.1.norm.weight")) == gradients[-1]


def test_an_output_that_differs_starts_behind_the_one_before() -> None:
    assert start(("activation", 0, "blocks.0.mlp.up")) == ("activation", 0, "blocks.0.norm")


def test_a_loss_alone_may_be_equal_by_chance() -> None:
    gradients = [one.key for one in MADE if one.kind == "gradient"]
    assert start(*gradients) == ("activation", 0, "head")


def test_the_first_weight_has_nothing_before_it() -> None:
    assert start(("weight", 0, "embedding.weight")) is None


def test_sides_that_are_the_same() -> None:
    assert _equal_bits(align(trace(MADE), trace(MADE)))[0]


def test_another_torch_is_told() -> None:
    one, other = trace(MADE, torch="2.13.0"), trace(MADE, torch="2.9.1")
    assert _other_grounds(one, other) == ["A ran with torch 2.13.0, B with torch 2.9.1"]
    assert _other_grounds(one, one) == []
    assert _other_grounds(one, trace(MADE)) == []


class Again:
    """A, run again: nothing differs but what is said, from the given size on."""

    repeated = True

    def __init__(self, *sizes: float) -> None:
        self.sizes = sizes

    def make(self, coarsest: str, start: Key | None = None) -> list[dict[Key, Distance]]:
        outputs = [one.key for one in MADE if one.kind == "activation"]
        sizes = [0.0, *self.sizes, *[self.sizes[-1]] * len(outputs)]
        return [{key: Distance(size, size) for key, size in zip(outputs, sizes)}]


def notes(*sizes: float) -> tuple[str, ...]:
    other = changed(MADE, lambda one, values: values * 2 if one.kind == "update" else values)
    return _judged(trace(MADE), trace(other), Again(*sizes), Options(steps=1)).notes


def test_numbers_drawn_anew_are_told() -> None:
    (note,) = notes(0.3)
    assert "'blocks.0.norm' on: it draws random numbers" in note


def test_sums_in_another_order_grow_and_are_no_random_numbers() -> None:
    assert notes(1e-6, 1e-3, 0.3) == ()
