"""gradcheck: right gradients never fail, planted errors are found or said to be undecidable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from traindoctor.errors import GradcheckError, TraindoctorError
from traindoctor.exams.adapter import Adapter
from traindoctor.exams.gradcheck import gradcheck
from traindoctor.numerics.gradcheck_result import GradcheckResult, InputResult


class Planted(torch.autograd.Function):
    """Passes values through; the gradient goes through `fault`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fault: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.fault(grad), None


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w.sum(1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: x @ w,
    "relu": lambda x, w: torch.relu(x @ w) ** 2,
    "gelu": lambda x, w: F.gelu(x @ w),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "layer norm": lambda x, w: F.layer_norm(x @ w, (w.shape[1],)),
    "rms norm": rms_norm,
    "attention": lambda x, w: F.scaled_dot_product_attention(x[None], (x @ w @ w.T)[None], x[None]),
    "log-sum-exp": lambda x, w: (x @ w).logsumexp(-1),
    "cross-entropy": lambda x, w: F.cross_entropy(x @ w, torch.arange(len(x)) % w.shape[1]),
    "max": lambda x, w: (x @ w).max(-1).values,
    "large": lambda x, w: (x @ w).tanh() + 1e3 * (x**2).sum(),
}
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "factor 1.01": lambda g: 1.01 * g,
    "factor 1/N": lambda g: g / len(g),
    "sign": lambda g: -g,
    "missing term": lambda g: g - g.mean(),
    "beyond an index": lambda g: torch.cat([g[: len(g) // 2], 0 * g[len(g) // 2 :]]),
    "mask ignored": lambda g: torch.where(torch.arange(len(g))[:, None] % 3 == 0, 2 * g, g),
    "transposed": lambda g: g.flip(0),
}


def inputs(
    seed: int, rows: int, inner: int, columns: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator, dtype=torch.float64)
    w = torch.randn(inner, columns, generator=generator, dtype=torch.float64)
    return x.to(dtype), w.to(dtype)


def floats_only(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A kernel that knows float32 and nothing else."""

    def kernel(*tensors: Tensor) -> Tensor:
        if any(t.dtype != torch.float32 for t in tensors):
            raise RuntimeError("float32 only")
        return function(*tensors)

    return kernel


SHAPES = {
    "seed": st.integers(0, 10**6),
    "rows": st.integers(2, 7),
    "inner": st.integers(2, 6),
    "columns": st.integers(2, 6),
}
CASES = {"name": st.sampled_from(sorted(FUNCTIONS)), **SHAPES}
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
# A thousand in all.
FULL = settings(QUICK, max_examples=-(-1000 // len(FUNCTIONS)))


def no_false_failure(name: str, seed: int, rows: int, inner: int, columns: int) -> None:
    for dtype in (torch.float64, torch.float32):
        x, w = inputs(seed, rows, inner, columns, dtype)
        function = FUNCTIONS[name] if dtype == torch.float64 else floats_only(FUNCTIONS[name])
        result = gradcheck(function, (x, w))
        assert result.outcome != "wrong", f"{dtype}: {result}"


@QUICK
@given(**CASES)
def test_a_right_gradient_never_fails(name, seed, rows, inner, columns) -> None:
    no_false_failure(name, seed, rows, inner, columns)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@FULL
@given(**SHAPES)
def test_a_thousand_right_gradients_never_fail(name, seed, rows, inner, columns) -> None:
    no_false_failure(name, seed, rows, inner, columns)


def planted(fault: str, name: str, seed: int) -> str:
    x, w = inputs(seed, 6, 5, 4, torch.float64)
    function = FUNCTIONS[name]
    found = gradcheck(
        lambda x, w: function(Planted.apply(x, FAULTS[fault]), w), (x, w), seed=seed, patterns=False
    )
    assert found.inputs[1].outcome != "wrong"
    return found.inputs[0].outcome


def found_in(fault: str, seeds: range) -> None:
    """At least 99 % are found, and none of the rest is passed."""
    names = sorted(FUNCTIONS)
    outcomes = [planted(fault, names[seed % len(names)], seed) for seed in seeds]
    assert "pass" not in outcomes
    assert outcomes.count("wrong") >= 0.99 * len(outcomes)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_errors_are_found(fault: str) -> None:
    found_in(fault, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_hundreds_of_planted_errors_are_found(fault: str) -> None:
    found_in(fault, range(150))


def test_patterns_are_told() -> None:
    x, w = inputs(0, 6, 6, 4, torch.float64)

    def said(fault: Callable[[Tensor], Tensor], *, value: Tensor = x) -> str:
        found = gradcheck(lambda x, w: (Planted.apply(x, fault) @ w).sin(), (value, w))
        assert found.outcome == "wrong"
        return found.inputs[0].pattern

    assert said(lambda g: g / 6) == "constant factor 0.16667 (1/6, the size of the first axis)"
    assert said(lambda g: g * 36) == "constant factor 36 (the number of entries)"
    assert said(lambda g: g * 1.7) == "constant factor 1.7"
    assert said(lambda g: -g) == "opposite sign"
    assert said(lambda g: g.T.contiguous()) == "transposed"
    assert said(lambda g: torch.cat([g[:4], 0 * g[4:]])) == "zero from index 4 on along axis 0 of 6"
    heads = said(lambda g: torch.cat([g[:, :2], 3 * g[:, 2:4], g[:, 4:]], 1))
    assert heads == "wrong at index 2 to 3 along axis 1 of 6"


def test_one_head_of_four() -> None:
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64)
    fault = lambda g: torch.cat([g[:, :2], 0 * g[:, 2:3], g[:, 3:]], 1)  # noqa: E731
    found = gradcheck(lambda x: Planted.apply(x, fault).softmax(-2), x)
    assert found.inputs[0].pattern == "zero at index 2 only, along axis 1 of 4"


def test_masked_positions_are_named() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, dtype=torch.float64)
    targets = torch.tensor([1, -100, 3, 0, -100, 2])

    class Forgets(torch.autograd.Function):
        """Cross-entropy whose backward does not know that some targets are ignored."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, targets: Tensor) -> Tensor:
            ctx.save_for_backward(x, targets)
            return F.cross_entropy(x, targets, reduction="sum")

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            x, targets = ctx.saved_tensors
            hot = F.one_hot(targets.clamp(min=0), 5)
            return grad * (x.softmax(-1) - hot), None

    [found] = gradcheck(Forgets.apply, (x, targets)).inputs
    assert (found.outcome, found.pattern) == ("wrong", "wrong only where argument 1 masks")
    padded = torch.tensor([False, True, False, False, True, True])
    fault = lambda g: torch.where(padded[:, None], 2 * g, g)  # noqa: E731
    [found] = gradcheck(lambda x, mask: Planted.apply(x, fault).sin(), (x, padded)).inputs
    assert found.pattern == "wrong only where argument 1 is True"


def test_beyond_index_1024() -> None:
    x = torch.randn(3, 1500, dtype=torch.float64)
    fault = lambda g: torch.cat([g[:, :1024], torch.zeros_like(g[:, 1024:])], 1)  # noqa: E731
    found = gradcheck(lambda x: Planted.apply(x, fault).logsumexp(-1), x)
    assert found.inputs[0].pattern == "zero from index 1024 on along axis 1 of 1500"


def test_modules_are_tested_by_input_and_parameter() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 2))
    found = gradcheck(module, torch.randn(6, 4))
    assert found.ok, str(found)
    assert [one.name for one in found.inputs][:3] == ["input 0", "0.weight", "0.bias"]
    assert found.inputs[0].dtype == "float64"


def test_a_reference_decides_without_differences() -> None:
    x, w = inputs(1, 4, 3, 5, torch.float32)
    assert gradcheck(lambda x, w: (x @ w).exp(), (x, w), lambda x, w: torch.exp(x @ w))
    found = gradcheck(lambda x, w: (x @ w).exp(), (x, w), lambda x, w: 2 * torch.exp(x @ w))
    assert found.outcome == "wrong"
    assert found.inputs[0].factor == pytest.approx(0.5, rel=1e-4)


def test_numpy_code_through_an_adapter() -> None:
    right = Adapter(lambda x: np.tanh(x), lambda dy, x: dy * (1 - np.tanh(x) ** 2))
    wrong = Adapter(lambda x: np.tanh(x), lambda dy, x: dy * (1 - np.tanh(x)))
    x = torch.randn(7, dtype=torch.float64)
    assert gradcheck(right, x)
    assert gradcheck(wrong, x).outcome == "wrong"


def test_noise_is_undecided_never_passed() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (x * 1e9).round() / 1e9 * 1.0 if x.dtype == torch.float64 else x

    found = gradcheck(
        lambda x: noisy(Planted.apply(x, lambda g: g)), torch.randn(5, dtype=torch.float64)
    )
    assert found.outcome != "pass"


def test_mistakes_of_use_are_told() -> None:
    with pytest.raises(TraindoctorError, match="at least one floating tensor"):
        gradcheck(lambda x: x, torch.arange(3))
    with pytest.raises(TraindoctorError, match="no gradient"):
        gradcheck(lambda x: x.detach(), torch.randn(3))


def off_by(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: Planted.apply(x, lambda g: factor * g).sin()


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.5, False), (-1.0, False)])
def test_a_result_is_true_only_when_the_gradient_is_right(factor: float, right: bool) -> None:
    x = torch.linspace(-1, 1, 12)
    result = gradcheck(off_by(factor), x)
    assert bool(result) == result.ok == right
    if right:
        assert gradcheck(off_by(factor), x, raise_exception=True)
        return
    with pytest.raises(GradcheckError) as raised:
        gradcheck(off_by(factor), x, raise_exception=True)
    assert isinstance(raised.value, RuntimeError)  # as torch's own
    assert raised.value.result == result
    assert str(raised.value) == str(result)


def test_what_cannot_be_decided_is_not_right() -> None:
    passed = InputResult("x", "pass", 0.0, 1e-6, "", None, "finite differences", "float32")
    result = GradcheckResult((passed, replace(passed, name="w", outcome="undecided")))
    assert not result
    with pytest.raises(GradcheckError, match=r"^w: cannot be decided at this precision"):
        result.require()
    assert GradcheckResult((passed,))


def test_a_gradient_that_differs_from_the_reference_raises_when_asked() -> None:
    x = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert gradcheck(torch.exp, x, torch.exp, raise_exception=True)
    with pytest.raises(GradcheckError, match="WRONG"):
        gradcheck(torch.exp, x, lambda x: 2 * torch.exp(x), raise_exception=True)


def test_a_result_without_inputs_is_not_true() -> None:
    assert not GradcheckResult(())
