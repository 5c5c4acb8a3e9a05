"""The Triton kernels on small odd shapes; run by test_triton.py in the interpreter, or on a GPU.

Not collected by itself: Triton decides when it is imported whether kernels are interpreted.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import traindoctor.kernels.cross_entropy as public
import traindoctor.kernels.linear_cross_entropy.exponentials as exponentials
import traindoctor.kernels.linear_cross_entropy.triton as fused
from kernels.sure_rows import LEADS, sure_products, sure_rows, truth, units_off, worst_row
from traindoctor import cross_entropy, linear_cross_entropy
from traindoctor.kernels.cross_entropy import layout
from traindoctor.kernels.cross_entropy import rows as row_launches
from traindoctor.kernels.device import totals
from traindoctor.kernels.launch import launch

# Masks are -inf and rows of them NaN by design; the interpreter's numpy warns of each.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter truncates where the GPU rounds to bfloat16.
BFLOAT16 = 2.5e-3 if DEVICE == "cuda" else 6e-3
UNITS = 2


def relative(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true.double()).norm() / true.double().norm().clamp_min(1e-30))


def loss_and_gradient(function, logits: Tensor, targets: Tensor, **options):
    logits = logits.detach().requires_grad_()
    loss = function(logits, targets, **options)
    (loss * torch.linspace(1, 1.5, loss.numel(), device=DEVICE).view(loss.shape)).sum().backward()
    return loss.detach(), logits.grad


def make(N: int, V: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(N * V)
    logits = (2 * torch.randn(N, V, generator=generator)).to(dtype)
    targets = torch.randint(V, (N,), generator=generator)
    targets[0], targets[1], targets[2] = 0, V - 1, -100
    return logits.to(DEVICE), targets.to(DEVICE)


@pytest.fixture(autouse=True)
def nothing_decided_yet(monkeypatch) -> None:
    """What other tests' settings decided must not be found again."""
    monkeypatch.setattr(public, "_CALLS", {})
    row_launches.rows.cache_clear()


@pytest.fixture(params=["small", "held", "streamed", "row to row"])
def path(request, monkeypatch) -> str:
    """Each way through the kernels, at a size the interpreter can bear."""
    if request.param != "small":
        held = request.param == "held"
        cut = layout.Plan(parts=1, block=256 if held else 64, num_warps=4, held=held)
        if request.param == "row to row":
            cut = layout.Plan(parts=1, block=256, num_warps=4, resident=2)
        monkeypatch.setattr(row_launches, "SMALL", 15)
        monkeypatch.setattr(layout, "plan", lambda *_, **__: cut)
    return request.param


@pytest.fixture(params=[False, True], ids=["later", "early"])
def early(request, monkeypatch) -> bool:
    """The gradient made in the backward pass, or already in the forward pass."""
    monkeypatch.setattr(
        public, "_gradient_in_forward", lambda _, s: request.param and s.reduction != "none"
    )
    return request.param


@pytest.mark.parametrize("V", [50, 203])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradient(path, early, V, dtype) -> None:
    logits, targets = make(5, V, dtype)
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets, impl="triton")
    true = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    assert loss.dtype == torch.float32
    assert relative(loss, true[0]) < 2e-7
    assert relative(gradient, true[1]) < (1e-6 if dtype == torch.float32 else BFLOAT16)


@pytest.mark.parametrize(
    "settings",
    [{"COUNTING_PROGRAMS": 1, "COUNTED": 16}, {"COUNTED_BY_EACH": 0}],
    ids=["by each program", "before"],
)
@pytest.mark.parametrize("ignored", [0.3, 1.0])
def test_many_small_rows_are_divided_by_the_valid_ones(settings, ignored, monkeypatch) -> None:
    """More groups of rows than programs, and a mean whose divisor is counted in the launch or before it."""
    monkeypatch.setattr(public, "_gradient_in_forward", lambda *_: True)
    for name, value in settings.items():
        monkeypatch.setattr(row_launches, name, value)
    logits, targets = make(150, 50)
    few = torch.rand(150, generator=torch.Generator().manual_seed(1)) < ignored
    targets[few.to(DEVICE)] = -100
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets, impl="triton")
    true = loss_and_gradient(F.cross_entropy, logits.double(), targets)
    if ignored == 1:
        assert loss.isnan()
        assert not gradient.any()
        return
    assert relative(loss, true[0]) < 2e-7
    assert relative(gradient, true[1]) < 1e-6


def test_a_graph_kept_gives_its_gradient_again() -> None:
    """The first pass gives away the gradient of the forward pass; the next ones make it anew."""
    logits, targets = make(9, 50)
    logits.requires_grad_()
    loss = cross_entropy(logits, targets, impl="triton")
    passes = [torch.autograd.grad(2 * loss, logits, retain_graph=True)[0] for _ in range(2)]
    (last,) = torch.autograd.grad(2 * loss, logits)
    assert relative(passes[0], last) < 1e-7
    assert torch.equal(passes[1], last)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(2 * loss, logits)


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"reduction": "none"},
        {"reduction": "sum", "z_loss": 0.01, "label_smoothing": 0.2},
    ],
    ids=str,
)
def test_options(path, options) -> None:
    logits, targets = make(4, 50)
    found = loss_and_gradient(cross_entropy, logits, targets, impl="triton", **options)
    true = loss_and_gradient(cross_entropy, logits.double(), targets, impl="reference", **options)
    assert relative(found[0], true[0]) < 5e-7
    assert relative(found[1], true[1]) < 1e-6


def test_shifted_rows_are_read_where_they_lie(path) -> None:
    logits, targets = make(6, 51)
    shifted = logits.view(2, 3, 51)[:, :-1]
    targets = targets.view(2, 3)[:, 1:]
    found = loss_and_gradient(cross_entropy, shifted, targets, impl="triton")
    rows = shifted.double().reshape(-1, 51)
    true = loss_and_gradient(F.cross_entropy, rows, targets.reshape(-1))
    assert relative(found[0], true[0]) < 2e-7
    assert relative(found[1].reshape(-1, 51), true[1]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_at_odd_addresses(path, early, dtype) -> None:
    logits, targets = make(6, 61, dtype)
    odd = logits[:, 1:]
    assert odd.data_ptr() % 16
    targets = (targets - 1).clamp_min(0)
    found = loss_and_gradient(cross_entropy, odd, targets, impl="triton")
    true = loss_and_gradient(F.cross_entropy, odd.double(), targets)
    assert relative(found[0], true[0]) < 2e-7
    assert relative(found[1], true[1]) < (1e-6 if dtype == torch.float32 else BFLOAT16)


def test_sure_rows_offsets_and_masked_vocabulary(path) -> None:
    logits, targets = make(5, 130)
    logits[0, 0] += 25
    logits[1] += 1e4
    logits[3, :70] = -torch.inf
    targets[3] = 100
    losses, gradient = loss_and_gradient(
        cross_entropy, logits, targets, impl="triton", reduction="none"
    )
    true = loss_and_gradient(
        cross_entropy, logits.double(), targets, impl="torch", reduction="none"
    )
    assert ((losses - true[0]).abs() <= 1e-6 * true[0]).all()
    for row in range(5):
        assert relative(gradient[row], true[1][row]) < 2e-6


@pytest.mark.parametrize("lead", LEADS)
def test_sure_rows_keep_every_digit(path, lead) -> None:
    logits, targets = sure_rows(12, 130, lead)
    true, gradient = truth(logits, targets)
    logits = logits.to(DEVICE).requires_grad_()
    losses = cross_entropy(logits, targets.to(DEVICE), impl="triton", reduction="none")
    losses.sum().backward()
    assert units_off(losses.detach().cpu(), true).max() <= UNITS
    assert worst_row(logits.grad.cpu(), gradient) < 1e-6


@pytest.mark.parametrize("lead", LEADS)
def test_sure_rows_of_the_linear_loss(lead) -> None:
    hidden, weight, targets = sure_products(6, 50, lead)
    true, dlogits = truth(hidden.double() @ weight.double().T, targets)
    leaves = [x.to(DEVICE).requires_grad_() for x in (hidden, weight)]
    losses = linear_cross_entropy(*leaves, targets.to(DEVICE), impl="triton", reduction="none")
    losses.sum().backward()
    assert units_off(losses.detach().cpu(), true).max() <= UNITS
    assert worst_row(leaves[0].grad.cpu(), dlogits @ weight.detach().double()) < 1e-6


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_logits_as_torch(path, value) -> None:
    logits, targets = make(5, 40)
    logits[0, 0] = value  # the target
    logits[1, 7] = value  # another class
    logits[3] = value
    found = loss_and_gradient(cross_entropy, logits, targets, impl="triton", reduction="none")
    true = loss_and_gradient(F.cross_entropy, logits, targets, reduction="none")
    torch.testing.assert_close(found, true, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_all_ignored_one_class_and_out_of_range(path) -> None:
    logits, targets = make(4, 20)
    loss, gradient = loss_and_gradient(
        cross_entropy, logits, torch.full_like(targets, -100), impl="triton"
    )
    assert loss.isnan()
    assert (gradient == 0).all()
    one = cross_entropy(logits[:, :1], torch.zeros_like(targets), impl="triton")
    assert one == 0
    targets[0] = 20
    with pytest.raises(IndexError, match="Target 20"):
        cross_entropy(logits, targets, impl="triton", check_targets=True)


def test_two_runs_give_the_same_bits(path) -> None:
    logits, targets = make(5, 60)
    first = loss_and_gradient(cross_entropy, logits, targets, impl="triton")
    second = loss_and_gradient(cross_entropy, logits, targets, impl="triton")
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.parametrize("ignored", [0, 0.4, 1])
def test_rows_that_count_come_first(ignored) -> None:
    """By several programs, each of which knows nothing of the others; the last has less to place."""
    N, length = 2500, 700
    targets = torch.randint(50, (N,), generator=torch.Generator().manual_seed(3))
    targets[torch.rand(N, generator=torch.Generator().manual_seed(4)) < ignored] = -100
    targets = targets.to(DEVICE)
    order = torch.full((N,), -1, dtype=torch.int32, device=DEVICE)
    num_valid = torch.full((), -1, dtype=torch.float64, device=DEVICE)
    words = torch.full((1500,), 7, dtype=torch.int64, device=DEVICE)
    launch(
        totals.valid_first,
        4,
        (targets, order, num_valid, words),
        (N, length, len(words) - 1, -100),
        (256,),
        num_warps=4,
    )
    assert num_valid == (targets != -100).sum()
    assert torch.equal(order.long(), (targets == -100).int().argsort(stable=True))
    assert not words[:-1].any()
    assert words[-1] == 7


@pytest.fixture
def small_tiles(monkeypatch) -> None:
    """Several chunks and several tiles at a size the interpreter can bear."""
    if DEVICE == "cpu":
        tiles = exponentials.Tiles(rows=16, classes=32, width=16)
        monkeypatch.setattr(fused, "TILES", tiles)
    monkeypatch.setattr(fused, "SMALLEST_CHUNK", 0)
    monkeypatch.setattr(fused, "CHUNK_PER_WEIGHT", 0)
    monkeypatch.setattr(fused, "ROW_TILE", 16)
    monkeypatch.setattr(exponentials, "SAMPLES", 8)


@pytest.mark.parametrize(
    ("dtype", "scale", "options"),
    [
        (torch.bfloat16, 1.0, {}),
        (torch.bfloat16, 60.0, {"z_loss": 1e-3}),  # rows far from their sample: `_repair`
        (torch.bfloat16, 1.0, {"reduction": "none"}),
        (torch.bfloat16, 1.0, {"label_smoothing": 0.1}),
        (torch.float32, 1.0, {}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("small_tiles")
def test_linear(dtype, scale, options) -> None:
    N, D, V = 21, 24, 75
    generator = torch.Generator().manual_seed(1)
    inputs = [
        (scale * torch.randn(N, D, generator=generator)).to(DEVICE, dtype),
        torch.randn(V, D, generator=generator).to(DEVICE, dtype),
        torch.randn(V, generator=generator).to(DEVICE, dtype),
    ]
    targets = torch.randint(V, (N,), generator=generator).to(DEVICE)
    targets[3] = -100

    def run(impl: str, leaves: list[Tensor]) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in leaves]
        loss = linear_cross_entropy(leaves[0], leaves[1], targets, leaves[2], impl=impl, **options)
        loss.sum().backward()
        return [loss.detach(), *(x.grad for x in leaves)]

    found = run("triton", inputs)
    true = run("reference", [x.double() for x in inputs])
    assert relative(found[0], true[0]) < 1e-6
    for a, b in zip(found[1:], true[1:]):
        assert relative(a, b) < (1e-5 if dtype == torch.float32 else 2.5 * BFLOAT16)


@pytest.mark.usefixtures("small_tiles")
def test_linear_without_room_for_float32_sums(monkeypatch) -> None:
    """Half of the classes is summed in the gradient's own memory, the other half is made twice."""
    # on a GPU, room for whole tiles in each half
    N, D, V, half = (20, 16, 72, 32) if DEVICE == "cpu" else (300, 64, 1000, 512)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(N, D, generator=generator).to(DEVICE).bfloat16()
    weight = torch.randn(V, D, generator=generator).to(DEVICE).bfloat16()
    bias = torch.randn(V, generator=generator).to(DEVICE).bfloat16()
    targets = torch.randint(V, (N,), generator=generator).to(DEVICE)
    targets[::7] = -100

    def run() -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in (hidden, weight, bias)]
        # a negative factor comes through too
        loss = -linear_cross_entropy(*leaves[:2], targets, leaves[2], impl="triton", z_loss=1e-3)
        loss.backward()
        return [x.grad for x in leaves]

    with_room = run()
    monkeypatch.setattr(fused, "LARGEST_FLOAT32_GRADIENT", 0)
    without = run()
    assert torch.equal(without[0], with_room[0])
    assert torch.equal(without[2], with_room[2])
    assert torch.equal(without[1][:half], with_room[1][:half])
    assert relative(without[1], with_room[1]) < 2 * BFLOAT16


def test_linear_forward_alone(monkeypatch) -> None:
    hidden = torch.randn(5, 16, device=DEVICE).bfloat16()
    weight = torch.randn(33, 16, device=DEVICE).bfloat16()
    targets = torch.randint(33, (5,), device=DEVICE)
    if DEVICE == "cpu":
        tiles = exponentials.Tiles(rows=16, classes=32, width=16)
        monkeypatch.setattr(fused, "TILES", tiles)
    loss = linear_cross_entropy(hidden, weight, targets, impl="triton")
    true = F.cross_entropy(hidden.double() @ weight.double().T, targets)
    assert relative(loss, true) < 1e-6


on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="programs that wait for each other need a GPU")


@on_gpu
@pytest.mark.parametrize("V", [2004, 5003, 32000, 50257, 128256, 262144])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_full_size(V, dtype, early) -> None:
    logits, targets = make(300, V, dtype)
    loss, gradient = loss_and_gradient(cross_entropy, logits, targets)
    again = loss_and_gradient(cross_entropy, logits, targets)
    true = loss_and_gradient(cross_entropy, logits.double(), targets, impl="torch")
    assert torch.equal(loss, again[0])
    assert torch.equal(gradient, again[1])
    assert relative(loss, true[0]) < 2e-7
    assert relative(gradient, true[1]) < 1.01 * relative(true[1].to(dtype), true[1]) + 1e-7


@on_gpu
def test_a_target_out_of_range_on_the_gpu_makes_nan() -> None:
    logits, targets = make(5, 50257)
    targets[0] = 50257
    assert cross_entropy(logits, targets).isnan()


@on_gpu
def test_linear_full_size() -> None:
    hidden = torch.randn(3000, 768, device=DEVICE).bfloat16().requires_grad_()
    weight = (0.1 * torch.randn(50257, 768, device=DEVICE)).bfloat16().requires_grad_()
    targets = torch.randint(50257, (3000,), device=DEVICE)
    linear_cross_entropy(hidden, weight, targets).backward()
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    linear_cross_entropy(exact[0], exact[1], targets, impl="torch").backward()
    assert relative(hidden.grad, exact[0].grad) < 3.5e-3
    rows = (weight.grad.double() - exact[1].grad).norm(dim=1) / exact[1].grad.norm(dim=1)
    assert rows.max() < 1e-2
