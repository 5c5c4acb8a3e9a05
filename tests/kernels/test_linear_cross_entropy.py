"""Linear layer and cross-entropy in one: exact gradients, and never all logits at once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from traindoctor import linear_cross_entropy
from traindoctor.kernels.linear_cross_entropy import chunked


def make(N: int, D: int, V: int, *, ignored: int = 0, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64) / D**0.5
    bias = torch.randn(V, generator=generator, dtype=torch.float64)
    targets = torch.randint(V, (N,), generator=generator)
    targets[:ignored] = -100
    return hidden, weight, bias, targets


def eager(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor, **options) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), targets, **options)


def run(function, hidden, weight, bias, targets, **options) -> list[Tensor]:
    """[loss, gradients of hidden, weight and bias]"""
    leaves = [x.detach().clone().requires_grad_() for x in (hidden, weight, bias)]
    loss = function(leaves[0], leaves[1], targets, leaves[2], **options)
    (loss * torch.linspace(1, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)).sum().backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves)]


def relative(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true.double()).norm() / true.double().norm())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_as_torch(impl: str, smoothing: float, reduction: str) -> None:
    inputs = make(9, 5, 50, ignored=3)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    found = run(linear_cross_entropy, *inputs, impl=impl, **options)
    torch.testing.assert_close(found, run(eager, *inputs, **options), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("V", [50, 2004, 50257])
@pytest.mark.parametrize("ignored", [0, 2])
def test_old_scenarios_in_several_chunks(V: int, ignored: int, monkeypatch) -> None:
    monkeypatch.setattr(chunked, "CPU_ELEMENTS", 16 * V)
    monkeypatch.setattr(chunked, "CACHE_ELEMENTS", 3 * V)
    inputs = make(40, 8, V, ignored=ignored)
    found = run(linear_cross_entropy, *inputs)
    torch.testing.assert_close(found, run(eager, *inputs), rtol=1e-10, atol=1e-13)


@given(
    st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 60),
    st.sampled_from([(torch.float32, 2e-6), (torch.bfloat16, 6e-3), (torch.float16, 2e-3)]),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_any_shape_and_dtype(N, D, V, budget, seed) -> None:
    dtype, allowed = budget
    hidden, weight, bias, targets = make(N, D, V, seed=seed)
    inputs = [x.to(dtype) for x in (hidden, weight, bias)]
    found = run(linear_cross_entropy, *inputs, targets, reduction="sum")
    true = run(eager, *(x.double() for x in inputs), targets, reduction="sum")
    assert found[0].dtype == torch.float32
    assert [x.dtype for x in found[1:]] == [dtype] * 3
    for a, b in zip(found, true):
        assert (a.double() - b).norm() <= allowed * b.norm() + 1e-5


def test_short_dtypes_are_as_good_as_one_rounding() -> None:
    hidden, weight, bias, targets = make(200, 32, 3000)
    inputs = [x.bfloat16() for x in (hidden, weight, bias)]
    found = run(linear_cross_entropy, *inputs, targets)
    true = run(eager, *(x.double() for x in inputs), targets)
    assert relative(found[0], true[0]) < 1e-6
    for a, b in zip(found[1:], true[1:]):
        assert relative(a, b) < 1.2 * relative(b.bfloat16(), b)
    worst_row = ((found[2].double() - true[2]).norm(dim=1) / true[2].norm(dim=1)).max()
    assert worst_row < 1e-2


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor any operation gives back."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes())
        return result


def test_the_logits_never_exist_at_once(monkeypatch) -> None:
    N, D, V = 512, 4, 4096
    monkeypatch.setattr(chunked, "CPU_ELEMENTS", 32 * V)
    hidden, weight, bias, targets = (
        x.float() if x.is_floating_point() else x for x in make(N, D, V)
    )
    with LargestTensor() as seen:
        run(linear_cross_entropy, hidden, weight, bias, targets)
    assert seen.largest <= 32 * V * 4
    with LargestTensor() as seen:
        run(eager, hidden, weight, bias, targets)
    assert seen.largest >= N * V * 4


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias"])
def test_only_what_needs_a_gradient_gets_one(frozen: str) -> None:
    hidden, weight, bias, targets = make(6, 4, 11)
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name != frozen)
    linear_cross_entropy(hidden, weight, targets, bias).backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is None] == [frozen]


def test_three_axes_and_no_bias() -> None:
    hidden, weight, _, targets = make(12, 4, 11)
    loss = linear_cross_entropy(hidden.view(3, 4, 4), weight, targets.view(3, 4))
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, targets))


def test_autocast_keeps_float32_gradients_of_float32_weights() -> None:
    hidden, weight, bias, targets = (
        x.float() if x.is_floating_point() else x for x in make(64, 16, 500)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(linear_cross_entropy, hidden, weight, bias, targets)
    rounded = [hidden.bfloat16().double(), weight.bfloat16().double(), bias.double()]
    true = run(eager, *rounded, targets)
    assert all(x.dtype == torch.float32 for x in found)
    assert relative(found[0], true[0]) < 1e-6
    # better than bfloat16 could hold: nothing was rounded to it on the way
    assert relative(found[2], true[2]) < 5e-4


def test_dtypes_that_differ_outside_autocast_are_an_error() -> None:
    hidden, weight, _, targets = make(4, 3, 5)
    with pytest.raises(RuntimeError, match="one dtype"):
        linear_cross_entropy(hidden.float(), weight.bfloat16(), targets)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_first_and_second_derivatives(reduction: str) -> None:
    hidden, weight, bias, targets = make(4, 3, 6, ignored=1)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]

    def function(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return linear_cross_entropy(
            h, w, targets, b, label_smoothing=0.1, z_loss=0.01, reduction=reduction, impl="torch"
        )

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_backward_twice_adds_up() -> None:
    hidden, weight, bias, targets = make(4, 3, 6)
    weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, targets, bias)
    loss.backward(retain_graph=True)
    once = weight.grad.clone()
    (3 * loss).backward()
    torch.testing.assert_close(weight.grad, 4 * once)


def test_compiles_without_a_graph_break() -> None:
    inputs = make(6, 4, 20, ignored=1)

    def step(h, w, targets, b) -> Tensor:
        return linear_cross_entropy(h.tanh(), w, targets, b)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(compiled, *inputs), run(step, *inputs))


def test_under_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    inputs = make(6, 4, 20)

    def step(h, w, targets, b) -> Tensor:
        return checkpoint(linear_cross_entropy, h, w, targets, b, use_reentrant=False)

    torch.testing.assert_close(run(step, *inputs), run(eager, *inputs))


def test_all_ignored_and_out_of_range() -> None:
    hidden, weight, bias, targets = make(4, 3, 6, ignored=4)
    loss, *gradients = run(linear_cross_entropy, hidden, weight, bias, targets)
    assert loss.isnan()
    assert all((g == 0).all() for g in gradients)
    targets[2] = 6
    with pytest.raises(IndexError, match="Target 6 is out of bounds"):
        linear_cross_entropy(hidden, weight, targets, bias)


@pytest.mark.parametrize(
    ("hidden", "weight", "bias", "words"),
    [
        ((4, 3), (6, 2), (6,), r"hidden \(\.\.\., D\)"),
        ((4, 3), (0, 3), (0,), "at least one row"),
        ((4, 3), (6, 3), (5,), r"Expected bias \(6,\)"),
    ],
)
def test_shapes_that_do_not_fit(hidden, weight, bias, words) -> None:
    targets = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=words):
        linear_cross_entropy(torch.zeros(hidden), torch.zeros(weight), targets, torch.zeros(bias))
