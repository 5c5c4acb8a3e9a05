"""Cross-entropy: the same loss and gradient as torch's, and better where float32 allows it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from traindoctor import cross_entropy

IMPLEMENTATIONS = ["reference", "torch"]
# dtype, allowed error of the loss and of the gradient against float64 on the same logits
BUDGET = [
    (torch.float64, 1e-14, 1e-13),
    (torch.float32, 2.4e-7, 1e-6),
    (torch.bfloat16, 2.4e-7, 4e-3),
    (torch.float16, 2.4e-7, 5e-4),
]


def make(N: int, V: int, *, seed: int = 0, ignored: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(N, V, generator=generator, dtype=torch.float64)
    targets = torch.randint(V, (N,), generator=generator)
    targets[:ignored] = -100
    return logits, targets


def loss_and_gradient(function, logits: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
    logits = logits.detach().requires_grad_()
    loss = function(logits, *args, **kwargs)
    loss.sum().backward()
    return loss.detach(), logits.grad


def relative(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true.double()).norm() / true.double().norm())


# The three scenarios of the hand-written kernel's old test suite.
SCENARIOS = {
    "vocabulary below the block size": (8, 50, 0),
    "vocabulary above the block size": (8, 2004, 0),
    "GPT-2's vocabulary": (3, 50257, 0),
    "with masking": (8, 2004, 3),
}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_old_scenarios_against_torch(impl: str, scenario: str) -> None:
    N, V, ignored = SCENARIOS[scenario]
    logits, targets = make(N, V, ignored=ignored)
    found = loss_and_gradient(cross_entropy, logits, targets, impl=impl)
    true = loss_and_gradient(F.cross_entropy, logits, targets)
    torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_old_scenarios_by_finite_differences_in_float64(impl: str, scenario: str) -> None:
    N, V, ignored = SCENARIOS[scenario]
    logits, targets = make(N, V, ignored=ignored)
    _, gradient = loss_and_gradient(cross_entropy, logits, targets, impl=impl)
    generator = torch.Generator().manual_seed(1)
    h = 1e-4
    failures = 0
    for index in torch.randint(N * V, (12,), generator=generator).tolist():
        nudge = torch.zeros(N * V, dtype=torch.float64)
        nudge[index] = h
        nudge = nudge.view(N, V)
        up = cross_entropy(logits + nudge, targets, impl=impl)
        down = cross_entropy(logits - nudge, targets, impl=impl)
        failures += abs((up - down) / (2 * h) - gradient.view(-1)[index]) > 1e-9
    assert failures == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_options_as_torch(impl: str, smoothing: float, reduction: str) -> None:
    logits, targets = make(7, 40, ignored=2)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    found = loss_and_gradient(cross_entropy, logits, targets, impl=impl, **options)
    true = loss_and_gradient(F.cross_entropy, logits, targets, **options)
    torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-14)


@given(
    st.data(),
    st.integers(1, 6),
    st.integers(1, 70),
    st.sampled_from(BUDGET),
    st.sampled_from(["rows", "batch", "shifted", "padded", "strided"]),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_dtype_mask_and_stride(data, T, V, budget, layout) -> None:
    dtype, loss_error, gradient_error = budget
    seed = data.draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    full = torch.randn(3, T + 1, V + 5, generator=generator).to(dtype)
    logits = {
        "rows": full[0, :T, :V],
        "batch": full[:, :T, :V].contiguous(),
        "shifted": full[:, :-1, :V],
        "padded": full[:, :T, 2 : V + 2],
        "strided": full[:, ::2, :V].transpose(0, 1),
    }[layout]
    targets = torch.randint(V, logits.shape[:-1], generator=generator)
    masked = torch.rand(targets.shape, generator=generator) < 0.3
    targets[masked] = -100
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets, reduction="sum")
    rows = logits.double().reshape(-1, V)
    true, true_gradient = loss_and_gradient(
        F.cross_entropy, rows, targets.reshape(-1), reduction="sum"
    )
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert gradient.dtype == dtype
    assert gradient.shape == logits.shape
    assert abs(loss.double() - true) <= loss_error * abs(true) + 1e-12
    error = (gradient.double().reshape(-1, V) - true_gradient).norm()
    assert error <= gradient_error * true_gradient.norm() + 1e-7


@pytest.mark.parametrize(("dtype", "loss_error", "gradient_error"), BUDGET)
def test_error_budget(dtype, loss_error, gradient_error) -> None:
    logits, targets = make(16, 32000)
    logits = logits.to(dtype)
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    true = loss_and_gradient(cross_entropy, logits.double(), targets, impl="reference")
    assert relative(loss, true[0]) <= loss_error
    assert relative(gradient, true[1]) <= gradient_error
    assert relative(gradient, true[1]) <= 1.01 * relative(true[1].to(dtype), true[1]) + 1e-7


@pytest.mark.parametrize("nats", [10, 17, 25, 40])
def test_sure_rows_keep_loss_and_gradient(nats: int) -> None:
    logits, targets = make(8, 5000)
    column = targets.unsqueeze(1)
    logits.scatter_(1, column, -1e9)
    lead = logits.logsumexp(1, keepdim=True) + nats
    logits = logits.scatter(1, column, lead).float()
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    # even float64 loses the difference lse - x_t at 40 nats: the truth is log1p
    exact = logits.double()
    others = exact.scatter(1, column, -torch.inf)
    d = (others - exact.gather(1, column)).exp().sum(1)
    assert relative(loss, torch.log1p(d).mean()) < 1e-6
    at_target = gradient.gather(1, column).squeeze(1)
    assert relative(at_target, -d / (1 + d) / 8) < 1e-6


def test_an_offset_common_to_all_logits_is_harmless() -> None:
    logits, targets = make(8, 5000)
    logits = (logits + 1e4).float()
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    true = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    assert relative(loss, true[0]) < 1e-7
    assert relative(gradient, true[1]) < 1e-6


def test_a_leading_block_of_masked_vocabulary() -> None:
    logits, targets = make(4, 9000)
    logits[:, :4500] = -torch.inf
    targets = targets % 4500 + 4500
    found = loss_and_gradient(cross_entropy, logits, targets)
    true = loss_and_gradient(F.cross_entropy, logits, targets)
    torch.testing.assert_close(found, true)


def test_many_short_rows_in_bfloat16_have_a_float32_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100_000, 64, generator=generator).bfloat16()
    targets = torch.randint(64, (100_000,), generator=generator)
    loss = cross_entropy(logits, targets)
    assert loss.dtype == torch.float32
    assert relative(loss, F.cross_entropy(logits.double(), targets)) < 1e-7


def test_every_target_ignored_is_nan_with_zero_gradient_as_in_torch() -> None:
    logits, _ = make(3, 5)
    targets = torch.full((3,), -100)
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    true, true_gradient = loss_and_gradient(F.cross_entropy, logits, targets)
    assert loss.isnan()
    assert true.isnan()
    assert torch.equal(gradient, true_gradient)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", ["target", "elsewhere", "whole row"])
def test_non_finite_logits_as_torch(value: float, place: str) -> None:
    logits, targets = make(4, 6)
    at = {"target": targets[1], "elsewhere": (targets[1] + 1) % 6, "whole row": slice(None)}[place]
    logits[1, at] = value
    found = loss_and_gradient(cross_entropy, logits, targets, reduction="none")
    true = loss_and_gradient(F.cross_entropy, logits, targets, reduction="none")
    torch.testing.assert_close(found, true, equal_nan=True)


def test_an_ignored_row_gives_no_gradient_whatever_it_holds() -> None:
    logits, targets = make(3, 5, ignored=1)
    logits[0] = torch.nan
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    assert loss.isfinite()
    assert (gradient[0] == 0).all()


def test_z_loss_adds_the_squared_log_of_the_denominator() -> None:
    logits, targets = make(5, 9, ignored=1)
    z = 0.01
    found = loss_and_gradient(cross_entropy, logits, targets, z_loss=z)

    def written_out(x: Tensor) -> Tensor:
        return F.cross_entropy(x, targets) + z * (x.logsumexp(1)[1:] ** 2).mean()

    torch.testing.assert_close(found, loss_and_gradient(written_out, logits))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_first_and_second_derivatives(reduction: str) -> None:
    logits, targets = make(4, 6, ignored=1)
    logits.requires_grad_()

    def function(x: Tensor) -> Tensor:
        return cross_entropy(
            x, targets, label_smoothing=0.1, z_loss=0.01, reduction=reduction, impl="torch"
        )

    assert torch.autograd.gradcheck(function, logits)
    assert torch.autograd.gradgradcheck(function, logits)


def test_two_runs_give_the_same_bits() -> None:
    logits, targets = make(64, 3000)
    logits = logits.float()
    first = loss_and_gradient(cross_entropy, logits, targets)
    second = loss_and_gradient(cross_entropy, logits, targets)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_compiles_without_a_graph_break() -> None:
    logits, targets = make(6, 20, ignored=1)

    def step(x: Tensor) -> Tensor:
        return cross_entropy(x.tanh(), targets)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(loss_and_gradient(compiled, logits), loss_and_gradient(step, logits))


def test_under_checkpointing_and_autocast() -> None:
    from torch.utils.checkpoint import checkpoint

    logits, targets = make(6, 20)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpoint(lambda y: cross_entropy(y.tanh(), targets), x, use_reentrant=False)

    found = loss_and_gradient(step, logits.float())
    true = loss_and_gradient(lambda x: F.cross_entropy(x.tanh(), targets), logits)
    assert found[0].dtype == torch.float32
    assert relative(found[1], true[1]) < 1e-6


def test_backward_twice_adds_up() -> None:
    logits, targets = make(4, 7)
    logits.requires_grad_()
    loss = cross_entropy(logits, targets)
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    (3 * loss).backward()
    torch.testing.assert_close(logits.grad, 4 * once)


def test_no_rows_at_all() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.int64)
    assert cross_entropy(logits, targets).isnan()
    loss = cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    assert loss == 0
    assert logits.grad.shape == (0, 5)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_target_out_of_range_is_one_clear_error(impl: str) -> None:
    logits, targets = make(3, 5)
    targets[1] = 5
    with pytest.raises(IndexError, match=r"Target 5 is out of bounds: classes are 0 to 4"):
        cross_entropy(logits, targets, impl=impl)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"targets": torch.zeros(4, dtype=torch.int64)}, ValueError, r"shape \(3,\)"),
        ({"targets": torch.zeros(3)}, RuntimeError, "class indices"),
        ({"logits": torch.zeros(3, 5, dtype=torch.int64)}, RuntimeError, "floating point"),
        ({"logits": torch.zeros(3, 0)}, ValueError, "at least one class"),
        ({"reduction": "average"}, ValueError, "'average'"),
        ({"label_smoothing": 2.0}, RuntimeError, "between 0 and 1"),
        ({"impl": "cuda"}, ValueError, "'cuda'"),
    ],
)
def test_wrong_use_is_told_in_words(arguments, error, words) -> None:
    given = {"logits": torch.zeros(3, 5), "targets": torch.zeros(3, dtype=torch.int64)} | arguments
    with pytest.raises(error, match=words):
        cross_entropy(given.pop("logits"), given.pop("targets"), **given)


def test_triton_is_refused_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="needs a CUDA tensor"):
        cross_entropy(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), impl="triton")
