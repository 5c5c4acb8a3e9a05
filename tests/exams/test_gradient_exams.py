"""Exams of gradient and loss: each finds the fault it was made for and is silent on its healthy twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hand_written import C, D, Loss, N
from patients import patient_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from single_step import tape_step
from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Finding
from traindoctor.checks.data.targets_misaligned import targets_misaligned
from traindoctor.checks.gradient.gradient_not_flowing import gradient_not_flowing
from traindoctor.checks.loss.double_softmax import double_softmax
from traindoctor.exams.accumulation import accumulation
from traindoctor.exams.finite_difference import finite_difference
from traindoctor.exams.functions_alone import functions_alone
from traindoctor.exams.gradient_flow import gradient_flow
from traindoctor.exams.half_gradients import half_gradients
from traindoctor.exams.init_scale import init_scale
from traindoctor.exams.loss_coefficient import loss_coefficient
from traindoctor.exams.loss_input import loss_input
from traindoctor.exams.precision_ladder import precision_ladder
from traindoctor.exams.printed_loss import printed_loss, projection
from traindoctor.exams.shift import shift
from traindoctor.exams.tape_gradient import tape_gradient
from traindoctor.experiment.patient import Patient
from traindoctor.ground.names import Names
from traindoctor.record import make_record


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.3 * grad


class Rounding(torch.autograd.Function):
    """A straight-through estimator written as a Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Quantised(torch.autograd.Function):
    """To a few levels of a scale that the values give: that scale has a derivative, and nobody means it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, how: str, passes: float) -> Tensor:
        ctx.passes = passes
        scale = x.abs().amax(dim=-1, keepdim=True) / 7
        to_a_level = {
            "round": lambda: (x / scale).round(),
            "sign": lambda: x.sign(),
            "where": lambda: torch.where(x >= 0, 1.0, -1.0),
            "compared": lambda: 2 * (x >= 0).float() - 1,
            "no level": lambda: x / 2,
            "cut off": lambda: x * (x > 0),
        }
        return to_a_level[how]() * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.passes * grad, None, None


class Nearest(torch.autograd.Function):
    """The nearest row of a table: the gradient goes straight through, and `factor` times to the table."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, factor: float) -> Tensor:
        chosen = torch.cdist(x, table).argmin(-1)
        ctx.save_for_backward(chosen)
        ctx.shape, ctx.factor = table.shape, factor
        return table[chosen]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (chosen,) = ctx.saved_tensors
        rows = torch.zeros(ctx.shape, dtype=grad.dtype).index_add(0, chosen, grad)
        return grad, ctx.factor * rows, None


class Outside(torch.autograd.Function):
    """Computes in NumPy, out of torch's sight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.factor * x * grad, None


class Filled(torch.autograd.Function):
    """Sums that a kernel writes into memory which torch saw as zeros; one output is None, one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, None, Tensor]:
        ctx.save_for_backward(x)
        ctx.factor = factor
        total, largest = torch.zeros(len(x)), torch.full((len(x),), -torch.inf)
        total.numpy()[:] = (x.detach().numpy() ** 2).sum(-1)
        largest.numpy()[:] = x.detach().numpy().max(-1)
        ctx.mark_non_differentiable(largest)
        return total * 1.0, None, largest

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return ctx.factor * x * grad[:, None], None


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, C))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D), torch.randint(C, (N,))


def perform(exam: Any, patient: Patient) -> dict[str, Any]:
    result = exam(patient)
    assert result.outcome == "done", result.reason
    return dict(result.values)


def by_function(model: nn.Module, data: tuple[Tensor, Tensor], fault: str) -> Patient:
    x, y = data
    return patient_of(model, lambda: Loss.apply(model(x), y, fault))


def test_a_right_function_gives_the_replayed_gradient(model, data) -> None:
    patient = by_function(model, data, "none")
    found = perform(tape_gradient, patient)
    assert found["difference"] < 1e-6
    assert found["faithful"] == 0
    (alone,) = perform(functions_alone, patient)["functions"]
    assert alone["difference"] < 1e-6


def test_a_wrong_function_is_named_with_its_factor(model, data) -> None:
    patient = by_function(model, data, "no mean")
    found = perform(tape_gradient, patient)
    assert found["difference"] == pytest.approx(N - 1, rel=1e-3)
    assert found["factor"] == pytest.approx(N, rel=1e-4)
    (alone,) = perform(functions_alone, patient)["functions"]
    assert (alone["name"], alone["test"]) == ("Loss", "tape")
    assert alone["factor"] == pytest.approx(N, rel=1e-4)
    assert alone["line"].startswith("test_gradient_exams.py:")


def test_a_forgotten_tile_is_located(model, data) -> None:
    (alone,) = perform(functions_alone, by_function(model, data, "tile"))["functions"]
    assert alone["pattern"] == "zero from index 4 on along axis 1 of 6"


def test_functions_that_change_gradients_on_purpose_are_known(model, data) -> None:
    x, y = data
    patient = patient_of(model, lambda: F.cross_entropy(Reverse.apply(model(x)), y))
    (alone,) = perform(functions_alone, patient)["functions"]
    assert alone["identity"]
    assert alone["factor"] == pytest.approx(-0.3)
    patient = patient_of(model, lambda: F.cross_entropy(Rounding.apply(10 * model(x)), y))
    (alone,) = perform(functions_alone, patient)["functions"]
    assert alone["surrogate"]


def test_straight_through_to_a_table_that_follows_without_gradient(data) -> None:
    """A codebook that is a moving average of what it stands for depends on the weights, and asks for no gradient."""
    x, y = data
    model = nn.Linear(D, C)
    table = torch.randn(5, C)

    def compute() -> Tensor:
        scores = model(x)
        with torch.no_grad():
            followed = 0.9 * table + 0.1 * scores[:5]
        return F.cross_entropy(Nearest.apply(scores, followed, 0.0), y)

    (alone,) = perform(functions_alone, patient_of(model, compute))["functions"]
    assert alone["surrogate"]


@pytest.mark.parametrize(
    ("trained", "factor"),
    [(False, 0.0), (True, 1.0), (True, 2.0)],
    ids=["buffer", "right", "wrong"],
)
def test_straight_through_beside_a_gradient_that_is_real(data, trained, factor) -> None:
    """A table that nobody trains needs no gradient; one that is trained must get its own."""
    x, y = data
    model = nn.Linear(D, C)
    model.table = nn.Parameter(torch.randn(5, C), requires_grad=trained)
    patient = patient_of(
        model, lambda: F.cross_entropy(Nearest.apply(model(x), model.table, factor), y)
    )
    (alone,) = perform(functions_alone, patient)["functions"]
    assert alone["surrogate"] is not trained
    if trained:
        assert alone["difference"] == pytest.approx(factor - 1, abs=1e-5)


@pytest.mark.parametrize(("factor", "right"), [(2.0, True), (2.2, False)])
def test_a_function_outside_torch_is_tested_by_differences(model, data, factor, right) -> None:
    x, _ = data
    patient = patient_of(model, lambda: Outside.apply(model(x), factor).mean())
    (alone,) = perform(functions_alone, patient)["functions"]
    assert alone["test"] == "finite differences"
    assert (alone["difference"] < 10 * alone["noise"]) == right
    if not right:
        assert alone["factor"] == pytest.approx(1.1, rel=1e-3)
    # The whole gradient is that of the Function as one op: the tape does not accuse what it cannot see.
    assert perform(tape_gradient, patient)["opaque"] == ["Outside"]


@pytest.mark.parametrize(("factor", "right"), [(2.0, True), (2.2, False)])
def test_memory_that_a_kernel_filled_depends_on_what_the_function_was_given(
    model, data, factor, right
) -> None:
    x, _ = data

    def compute() -> Tensor:
        total, _, largest = Filled.apply(model(x), factor)
        return total.mean() + 0 * largest.mean()

    patient = patient_of(model, compute)
    found = perform(tape_gradient, patient)
    assert (found["difference"], found["faithful"], found["opaque"]) == (0, 0, ["Filled"])
    assert perform(gradient_flow, patient)["blocked"] == 0
    (alone,) = perform(functions_alone, patient)["functions"]
    assert (alone["difference"] < 10 * alone["noise"]) == right
    if not right:
        assert alone["factor"] == pytest.approx(1.1, rel=1e-3)


@pytest.mark.parametrize("hook", ["none", "shrinks", "of another step"])
def test_a_hook_on_a_value_is_seen_and_what_it_leaves(model, data, hook: str) -> None:
    other = torch.randn(N, D)

    def loss() -> Tensor:
        hidden = torch.relu(model[0](data[0]))
        if hook != "none":
            hidden.register_hook(lambda g: 0.3 * g if hook == "shrinks" else other)
        return F.cross_entropy(model[2:](hidden), data[1])

    values = perform(tape_gradient, patient_of(model, loss))
    assert len(values["hooked"]) == (hook != "none")
    assert (values["wrong"] > 0) is (hook != "none")
    assert (values["turned"] > 0) is (hook == "of another step")


@pytest.mark.parametrize(
    "way", ["view", "permuted and flattened", "exchanged", "written over", "time first", "conv"]
)
@pytest.mark.parametrize("head", ["linear", "product", "einsum"])
def test_scores_of_several_places_beside_one_target(way: str, head: str) -> None:
    """(B, T, C) viewed as (B, C, T) where its axes must be exchanged."""
    torch.manual_seed(0)
    rows, places, classes = 3, 4, 5
    layer = nn.Conv1d(D, classes, 1) if way == "conv" else nn.Linear(D, classes)
    x, y = torch.randn(rows, places, D), torch.randint(classes, (rows, places))

    def loss() -> Tensor:
        if way == "conv":
            return F.cross_entropy(layer(x.transpose(1, 2)), y)
        weight, bias = layer.weight, layer.bias
        if head == "einsum":
            scores = torch.einsum("btd,cd->btc", x, weight) + bias
        else:
            scores = layer(x) if head == "linear" else x @ weight.T + bias
        if way == "written over":
            scores[..., 0] = -1e9
            return F.cross_entropy(scores.transpose(1, 2), y)
        if way == "view":
            return F.cross_entropy(scores.view(rows, classes, places), y)
        if way == "permuted and flattened":
            return F.cross_entropy(scores.permute(0, 2, 1).reshape(-1, classes), y.flatten())
        if way == "time first":
            flat = scores.transpose(0, 1).reshape(-1, classes)
            return F.cross_entropy(flat, y.t().reshape(-1))
        return F.cross_entropy(scores.transpose(1, 2), y)

    patient = patient_of(layer, loss)
    values = perform(loss_input, patient)
    sick = way in ("view", "permuted and flattened")
    assert (values["sites"][0]["mixed"] > 0) is sick
    found = targets_misaligned(make_record(exams=[loss_input(patient), shift(patient)]))
    assert isinstance(found, Finding) is sick


@pytest.mark.parametrize("way", ["view", "cut elsewhere", "transpose", "time first"])
def test_frames_of_an_alignment_that_are_viewed_for_exchanged(way: str) -> None:
    """(B, T, C) log-probabilities, where the loss takes (T, B, C)."""
    layer, x, y = nn.Linear(D, C), torch.randn(3, 8, D), torch.randint(1, C, (3, 2))

    def loss() -> Tensor:
        said = layer(x.transpose(0, 1) if way == "time first" else x).log_softmax(-1)
        ways = {
            "view": lambda: said.view(8, 3, C),  # whole frames, of other examples
            "cut elsewhere": lambda: said.transpose(1, 2).reshape(8, 3, C),
            "transpose": lambda: said.transpose(0, 1),
            "time first": lambda: said,
        }
        frames = ways[way]()
        return F.ctc_loss(frames, y, torch.full((3,), 8), torch.full((3,), 2))

    found = perform(loss_input, patient_of(layer, loss))["alignments"]
    assert (found[0]["mixed"] > 0) is (way in ("view", "cut elsewhere"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda scores: scores.softmax(-1), "probabilities"),
        (lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True), "probabilities"),
        (lambda scores: scores, "not log-probabilities"),
        (lambda scores: scores.log_softmax(-1), None),
        (lambda scores: scores.softmax(-1).log(), None),
        (lambda scores: scores - scores.logsumexp(-1, keepdim=True), None),
    ],
)
def test_a_loss_over_alignments_takes_log_probabilities(
    given: Callable[[Tensor], Tensor], said: str | None
) -> None:
    layer, x, y = nn.Linear(D, C), torch.randn(12, 3, D), torch.randint(1, C, (3, 2))
    lengths = torch.full((3,), 12), torch.full((3,), 2)
    patient = patient_of(layer, lambda: F.ctc_loss(given(layer(x)), y, *lengths))
    found = double_softmax(make_record(exams={"loss_input": dict(perform(loss_input, patient))}))
    assert isinstance(found, Finding) is (said is not None)
    assert said is None or said in found.summary


def test_scores_of_all_against_all_are_turned_on_purpose() -> None:
    """Texts by images and images by texts: no layer gives each place one score per class."""
    layer, x, z = nn.Linear(D, D), torch.randn(N, D), torch.randn(N, D)
    found = perform(
        loss_input,
        patient_of(layer, lambda: F.cross_entropy((layer(x) @ z.T).t(), torch.arange(N))),
    )
    assert found["sites"][0]["mixed"] is None
    # Features that gradients are collected at, for passes that come later: nor are these the weights of a layer.
    kept = torch.randn(N, D), torch.randn(N, D)

    def of_kept() -> Tensor:
        a, b = (one.clone().requires_grad_() for one in kept)
        return F.cross_entropy((layer.bias[0] * a @ b.T).t(), torch.arange(N))

    assert perform(loss_input, patient_of(layer, of_kept))["sites"][0]["mixed"] is None


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize(
    ("weigh", "cancels"),
    [
        (lambda p: p / p.sum(-1, keepdim=True), True),
        (lambda p: p * p.sum(-1, keepdim=True).reciprocal(), True),
        (lambda p: F.normalize(p, p=1, dim=-1), True),
        (lambda p: 1.0 + p - p * (p / p), True),
        (lambda p: p, False),
        (lambda p: p / p.detach(), False),
    ],
)
def test_a_router_whose_only_weight_is_divided_by_itself(
    weigh: Callable[[Tensor], Tensor], cancels: bool, balanced: bool
) -> None:
    """Top-1 routing: the balance of the experts may give it a gradient of its own."""
    torch.manual_seed(0)
    router, experts = nn.Linear(D, 4, bias=False), nn.Parameter(torch.randn(4, D, C))
    model = nn.ParameterDict({"router": router.weight, "experts": experts})
    x, y = torch.randn(N, D), torch.randint(C, (N,))

    def loss() -> Tensor:
        best, index = F.linear(x, model["router"]).softmax(-1).topk(1)
        scores = torch.einsum("nd,ndc->nc", x, model["experts"][index[:, 0]]) * weigh(best)
        balance = 0.01 * best.mean() if balanced else 0.0
        return F.cross_entropy(scores, y) + balance

    values = perform(gradient_flow, patient_of(model, loss))
    assert values["cancelled"] == (["router"] if cancels else [])


def test_old_gradients_show_as_leftover(model, data) -> None:
    x, y = data
    patient = Patient(names=Names(model), model=model)
    for step in range(2):
        tape = tape_step(
            lambda: F.cross_entropy(model(x), y), model, step=step, keep_gradients=True
        )
        patient.add_tape(tape)
    first, second = perform(tape_gradient, patient)["steps"]
    assert first["leftover"] == 0
    assert second["leftover"] > 0.5
    assert second["difference"] < 1e-5


@pytest.mark.parametrize("cleared", [True, False])
def test_gradients_cleared_between_two_passes_are_not_in_the_later_one(
    model, data, cleared: bool
) -> None:
    """A gradient cache: the first pass of a step reaches no parameter."""
    x, y = data
    patient = Patient(names=Names(model), model=model)

    def filled() -> Tensor:
        answers = model(x).detach().requires_grad_()
        return F.cross_entropy(answers, y)

    def second() -> Tensor:
        if cleared:
            model.zero_grad()
        return F.cross_entropy(model(x), y)

    for step in range(2):
        patient.add_tape(tape_step([filled, second], model, step=step, keep_gradients=True))
    last = perform(tape_gradient, patient)["steps"][-1]
    assert (last["leftover"] < 1e-6) is cleared
    assert last["difference"] < 1e-5


def test_the_printed_loss_is_the_optimised_one_or_not(model, data) -> None:
    x, y = data
    healthy = patient_of(model, lambda: F.cross_entropy(model(x), y))
    assert perform(printed_loss, healthy)["cosine"] > 0.9999

    def another() -> Tensor:
        logits = model(x)
        F.cross_entropy(logits, y)
        return (logits - 1).square().mean()

    # Scripts that print now and then: by step 20 a loss that nobody reads and nobody optimises is looked at, by step 12
    # where the first step, at which most print, was not taped.
    for steps, current, looked_at in (
        ([20], 21, True),
        ([0, 2], 13, False),
        ([2], 11, False),
        ([2], 12, True),
    ):
        patient = Patient(names=Names(model), model=model, current_step=current)
        for step in steps:
            patient.add_tape(tape_step(another, model, step=step))
            patient.tape.reads.clear()
        if not looked_at:
            assert printed_loss(patient).outcome == "refused"
            continue
        found = perform(printed_loss, patient)
        assert found["cosine"] < 0.9
        assert not found["was_read"]


def test_terms_printed_one_by_one_make_up_the_loss(model, data) -> None:
    x, y = data

    def compute() -> Tensor:
        logits = model(x)
        first, second = F.cross_entropy(logits, y), F.mse_loss(logits, torch.zeros_like(logits))
        return first + 5 * second

    tape = tape_step(compute, model)
    terms = [op.outputs[0] for op in tape.ops if op.name in ("cross_entropy", "mse_loss")]
    tape.reads[:] = [type(tape.reads[0])(ref, 0.0) for ref in terms]
    patient = Patient(names=Names(model), model=model)
    patient.add_tape(tape)
    found = perform(printed_loss, patient)
    assert found["best_single"] < 0.99
    assert found["cosine"] > 0.9999


def reading(
    model: nn.Module, compute: Callable[[], Tensor], read: Callable[[Any], bool]
) -> Patient:
    """A step of which the script reads the value of one op, and nothing else."""
    patient = patient_of(model, compute)
    tape = patient.tape
    assert tape is not None
    [ref] = [op.outputs[0] for op in tape.ops if read(op)][-1:]
    tape.reads[:] = [type(tape.reads[0])(ref, 0.0)]
    return patient


@pytest.mark.parametrize("by", ["index", "weight"])
@pytest.mark.parametrize("printed", ["with gradient", "without"])
def test_a_loss_of_examples_that_nobody_trains_on_is_an_evaluation(
    model, data, by: str, printed: str
) -> None:
    """All nodes of a graph go through the model; some are for training, others for validation."""
    x, y = data
    half = len(y) // 2

    def mean(logits: Tensor, chosen: slice) -> Tensor:
        if by == "index":
            return F.cross_entropy(logits[chosen], y[chosen])
        weight = torch.zeros(len(y))
        weight[chosen] = 1.0
        return (F.cross_entropy(logits, y, reduction="none") * weight).sum() / weight.sum()

    def compute() -> Tensor:
        logits = model(x)
        loss = mean(logits, slice(half))
        with torch.set_grad_enabled(printed == "with gradient"):
            mean(logits, slice(half, None))
        return loss

    name = "cross_entropy" if by == "index" else "__truediv__"
    patient = reading(model, compute, lambda op: op.name in (name, "div"))
    result = printed_loss(patient)
    assert not result.done
    assert "printed no loss" in result.reason


@pytest.mark.parametrize("shown", ["divergence", "one term", "mean"])
def test_a_statistic_or_a_term_of_the_loss_is_no_other_loss(model, data, shown: str) -> None:
    """A surrogate loss is optimised (ratios times advantages). Printed: how far the policy has moved, the value's
    error, or the mean of the squares, which is a loss that nobody optimises."""
    x, _ = data
    before, advantages = torch.randn(N), torch.linspace(-1, 1, N)

    def compute() -> Tensor:
        scores = model(x)
        squares = (scores[:, 0] - advantages.flip(0)) ** 2
        change = -squares - before
        value = ((scores[:, 1] - advantages) ** 2).mean()
        surrogate = (change.exp() * advantages).mean()
        moved = change.exp() - 1 - change
        float((moved if shown == "divergence" else squares).mean().detach())
        return 3 * surrogate + value

    means: list[Any] = []

    def chosen(op: Any) -> bool:
        means.extend([op] if op.name == "mean" else [])
        return op in means and (shown != "one term" or op is means[0])

    patient = reading(model, compute, chosen)
    result = printed_loss(patient)
    if shown == "mean":
        assert result.values["cosine"] < 0.9
    else:
        assert not result.done
        assert "a part or a statistic of the loss" in result.reason


@pytest.mark.parametrize("both", [True, False], ids=["each in its step", "one never"])
def test_a_loss_that_the_next_step_optimises_is_not_left_aside(tmp_path, data, both: bool) -> None:
    """Actor and critic: both losses are computed, then each one is optimised in a step of its own."""
    x, y = data
    actor, critic = nn.Linear(D, C), nn.Linear(D, C)
    steps = [torch.optim.SGD(net.parameters(), 0.1) for net in (actor, critic)]
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        for _ in range(24):
            one = -(actor(x).log_softmax(-1)[:, 0] * critic(x)[:, 0].detach()).mean()
            other = F.cross_entropy(critic(x), y)
            for loss, optimizer in zip((one, other), steps[: 1 + both]):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        result = printed_loss(watch.patient)
    finally:
        watch.close("done")
    if both:
        assert not result.done
    else:
        assert result.values["cosine"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("optimised", ["another loss", "the same loss"])
def test_the_loss_of_a_held_out_set_is_an_evaluation(model, data, optimised: str) -> None:
    x, y = data
    unseen, answers = torch.randn(N, D), torch.randint(C, (N,))

    def compute() -> Tensor:
        logits = model(x)
        with torch.no_grad():
            F.cross_entropy(model(unseen), answers)
        if optimised == "the same loss":
            return F.cross_entropy(logits, y)
        return F.mse_loss(logits.softmax(-1), F.one_hot(y, logits.shape[-1]).float())

    patient = reading(model, compute, lambda op: op.name == "cross_entropy" and not op.grad_enabled)
    result = printed_loss(patient)
    assert not result.done
    assert "printed no loss" in result.reason


@pytest.mark.parametrize("how", ["same rows", "some of them", "a pass of its own"])
def test_another_loss_of_the_same_examples_is_no_evaluation(model, data, how: str) -> None:
    x, y = data

    def compute() -> Tensor:
        logits = model(x)
        with torch.no_grad():
            shown = model(x) if how == "a pass of its own" else logits
            some = slice(len(y) // 2 if how == "some of them" else None)
            F.cross_entropy(shown[some], y[some])
        return F.mse_loss(logits.softmax(-1), 1 - F.one_hot(y, logits.shape[-1]).float())

    patient = reading(model, compute, lambda op: op.name == "cross_entropy")
    assert perform(printed_loss, patient)["cosine"] < 0.9


@pytest.mark.parametrize("pick", ["max", "median", "std"])
def test_how_losses_are_spread_is_no_other_loss(model, data, pick) -> None:
    """The worst example of the batch is printed at every step, the mean now and then."""
    x, y = data

    def compute() -> Tensor:
        each = F.cross_entropy(model(x), y, reduction="none")
        float(getattr(each.detach(), pick)())
        return each.mean()

    patient = patient_of(model, compute)
    tape = patient.tape
    picked = next(op.outputs[0] for op in tape.ops if op.name == pick)
    tape.reads[:] = [type(tape.reads[0])(picked, 0.0)]
    result = printed_loss(patient)
    assert not result.done
    assert "printed no loss" in result.reason


def test_the_loss_of_the_last_micro_batch_is_held_against_that_micro_batch(model) -> None:
    def micro() -> Callable[[], Tensor]:
        x, y = torch.randn(N, D), torch.randint(C, (N,))
        return lambda: F.cross_entropy(model(x), y) / 4

    patient = patient_of(model, [micro() for _ in range(4)])
    patient.tape.reads[:] = patient.tape.reads[-1:]
    assert perform(printed_loss, patient)["cosine"] > 0.9999


def test_underflow_in_half_precision_is_no_other_loss(model, data) -> None:
    x, y = data
    model.half()

    def faint() -> Tensor:
        loss = F.cross_entropy(model(x.half()).float(), y)
        float(loss.detach())
        return loss * 3e-6

    patient = patient_of(model, faint)
    given = torch.cat([g.flatten() for g in patient.tape.fresh.values() if g is not None])
    assert (given.abs() < 6e-5).float().mean() > 0.9  # the fault is there
    result = printed_loss(patient)
    assert not result.done
    assert "half precision" in result.reason


def test_a_precision_that_would_take_too_long_is_left_out(model, data) -> None:
    x, y = data
    patient = patient_of(model, lambda: F.cross_entropy(model(x), y))
    patient.seconds = 1e-9
    rungs = perform(precision_ladder, patient)["rungs"]
    assert rungs["float32"]["gradient"] < 1e-5
    assert "no time" in rungs["bfloat16"]["refused"]


@pytest.mark.parametrize("heard", [True, False])
def test_a_term_of_the_loss_that_is_computed_without_gradient(model, data, heard: bool) -> None:
    x, y = data
    soft = torch.softmax(
        torch.randn(model(x).shape, generator=torch.Generator().manual_seed(1)), -1
    )

    def compute() -> Tensor:
        scores = model(x)
        with torch.set_grad_enabled(heard):
            distilled = F.kl_div(scores.log_softmax(-1), soft, reduction="batchmean")
        return 0.1 * F.cross_entropy(scores, y) + (1 - 0.1) * distilled

    term = perform(printed_loss, patient_of(model, compute))["unheard"]
    assert (term is None) == heard
    if term is not None:
        assert term["share"] > 0.5


@pytest.mark.parametrize("how", ["heard", "no_grad", "detach"])
def test_a_penalty_of_a_helper_that_runs_without_gradient(model, data, how: str) -> None:
    """It has no targets. One that is detached where it is added is left out on purpose."""
    x, y = data

    def compute() -> Tensor:
        scores = model(x)
        with torch.set_grad_enabled(how != "no_grad"):
            penalty = -0.5 * (1 + scores - scores.exp()).sum(-1).mean()
        return F.cross_entropy(scores, y) + (penalty.detach() if how == "detach" else penalty)

    term = perform(printed_loss, patient_of(model, compute))["unheard"]
    assert (term is not None) == (how == "no_grad")


class OwnLoss(torch.autograd.Function):
    """A right cross-entropy by hand, as kernels are wrapped: its forward runs without gradients."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(scores, targets)
        return F.cross_entropy(scores, targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        scores, targets = ctx.saved_tensors
        wrong = scores.softmax(-1) - F.one_hot(targets, scores.shape[-1])
        return grad * wrong / len(targets), None


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_loss_that_is_an_autograd_function_is_heard(model, data, weight: float) -> None:
    x, y = data
    patient = patient_of(model, lambda: weight * OwnLoss.apply(model(x), y))
    found = perform(printed_loss, patient)
    assert found["unheard"] is None
    assert found["cosine"] > 0.999


def test_a_loss_that_is_added_up_in_place(model, data) -> None:
    x, y = data

    def compute() -> Tensor:
        scores = model(x)
        total = torch.zeros(())
        for number in range(3):
            total += F.cross_entropy(scores, y) / (number + 1)
        total *= 0.5
        return total

    found = perform(printed_loss, patient_of(model, compute))
    assert found["unheard"] is None
    assert found["cosine"] > 0.999


def test_a_baseline_that_is_subtracted_without_gradient_is_no_lost_term(model, data) -> None:
    x, y = data

    def compute() -> Tensor:
        scores = model(x)
        return F.cross_entropy(scores, y) - scores.detach().mean()

    assert perform(printed_loss, patient_of(model, compute))["unheard"] is None


def test_a_gradient_that_float16_swallowed_is_not_cut_off(model, data) -> None:
    x, _ = data
    swallowed = patient_of(model, lambda: ((model(x).half() * 1e-4).float() * 1e-4).mean())
    assert perform(gradient_flow, swallowed)["blocked"] == 0


@pytest.mark.parametrize("large", [True, False])
def test_the_op_that_float16_makes_infinite_though_the_loss_is_finite(
    model, data, large: bool
) -> None:
    x, y = data

    def compute() -> Tensor:
        h = (model(x) * (1e3 if large else 1.0)).half()
        return F.cross_entropy(
            (h * torch.rsqrt(h.square().sum(-1, keepdim=True) + 1e-4)).float(), y
        )

    overflow = perform(half_gradients, patient_of(model, compute))["overflow"]
    assert (overflow is not None) == large
    if overflow is not None:
        assert overflow["op"] in ("square", "sum")


def test_a_step_that_is_not_finite_says_nothing_of_the_printed_loss(model, data) -> None:
    x, y = data
    broken = patient_of(model, lambda: F.cross_entropy(model(x) * math.inf, y))
    result = printed_loss(broken)
    assert not result.done
    assert "not finite" in result.reason


@pytest.mark.parametrize(("divide", "expected"), [(1, 4.0), (4, 1.0)])
def test_the_weight_of_the_loss_over_micro_batches(model, divide, expected) -> None:
    def micro() -> Callable[[], Tensor]:
        x, y = torch.randn(N, D), torch.randint(C, (N,))
        return lambda: F.cross_entropy(model(x), y) / divide

    patient = patient_of(model, [micro() for _ in range(4)])
    found = perform(loss_coefficient, patient)
    assert found["main"]["coefficient"] == pytest.approx(expected)
    assert found["backwards"] == 4
    spread = perform(accumulation, patient)
    assert spread["sum"] == pytest.approx(expected)
    assert spread["unevenness"] == pytest.approx(0, abs=1e-6)


def test_a_sum_counts_its_targets(model, data) -> None:
    x, y = data
    y = y.clone()
    y[:4] = -100
    patient = patient_of(model, lambda: F.cross_entropy(model(x), y, reduction="sum"))
    assert perform(loss_coefficient, patient)["main"]["coefficient"] == pytest.approx(N - 4)


def test_a_cut_is_named_and_a_stop_gradient_is_not(data) -> None:
    x, y = data
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, C))
    patient = patient_of(
        model, lambda: F.cross_entropy(model[2](model[1](model[0](x)).detach()), y)
    )
    found = perform(gradient_flow, patient)
    assert found["blocked"] == 2
    assert found["names"] == ["0.weight", "0.bias"]
    assert found["cuts"][0]["kind"] == "detach"
    assert found["cuts"][0]["line"].startswith("test_gradient_exams.py:")

    def one_path() -> Tensor:
        h = model[0](x)
        return F.cross_entropy(model[2](h), y) + (h - h.detach().mean()).square().mean()

    assert perform(gradient_flow, patient_of(model, one_path))["blocked"] == 0


def test_an_optimizer_over_copies_holds_none_of_the_models_weights(model, data) -> None:
    x, y = data
    patient = patient_of(model, lambda: F.cross_entropy(model(x), y))
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    patient.optimizers = [torch.optim.SGD(copies, 0.1)]
    found = perform(gradient_flow, patient)
    assert (found["trainable"], found["silent"]) == (len(copies), 0)


def test_weights_that_start_at_zero_are_asked_again_later(data) -> None:
    """The head starts at zero and lets nothing through; a second way is cut on purpose."""
    x, y = data
    trunk, head, other = nn.Linear(D, D), nn.Linear(D, C), nn.Linear(D, C)
    nn.init.zeros_(head.weight)
    model = nn.ModuleList([trunk, head, other])

    def compute() -> Tensor:
        h = trunk(x).tanh()
        return F.cross_entropy(head(h), y) + F.cross_entropy(other(h.detach()), y)

    patient = patient_of(model, compute)
    result = gradient_flow(patient)
    assert result.outcome == "refused"
    assert result.values == {"too_early": True}


LOW_RANK = {
    "module": lambda down, up, x: nn.functional.linear(x, up @ down),
    "functional": lambda down, up, x: (x @ down.T) @ up.T,
    "einsum": lambda down, up, x: torch.einsum("nd,rd,cr->nc", x, down, up),
    "sum of products": lambda down, up, x: ((x[:, None] * down).sum(-1)[:, None] * up).sum(-1),
}


@pytest.mark.parametrize("way", LOW_RANK)
@pytest.mark.parametrize("both", [True, False], ids=["both zero", "one zero"])
def test_two_factors_that_start_at_zero_never_move(data, way: str, both: bool) -> None:
    """A low-rank adapter beside a frozen layer: one of its factors must not be zero."""
    x, y = data
    base = nn.Linear(D, C).requires_grad_(False)
    adapter = nn.ParameterDict({"down": torch.zeros(3, D), "up": torch.zeros(C, 3)})
    if not both:
        nn.init.normal_(adapter["down"])
    model = nn.ModuleList([base, adapter])

    def compute() -> Tensor:
        return F.cross_entropy(base(x) + LOW_RANK[way](adapter["down"], adapter["up"], x), y)

    result = gradient_flow(patient_of(model, compute))
    if both:
        assert result.values["only_together"]
        found = gradient_not_flowing(make_record(exams={"gradient_flow": dict(result.values)}))
        assert isinstance(found, Finding)
        assert found.status == "confirmed"
    else:  # the zero one moves at the first step, and then so does the other
        assert not result.values.get("only_together")


def test_values_that_pass_through_an_argmax_are_seen(data) -> None:
    x, y = data
    model = nn.ModuleDict({"pick": nn.Linear(D, 4), "table": nn.Embedding(4, C)})

    def compute() -> Tensor:
        return F.cross_entropy(model["table"](model["pick"](x).argmax(-1)), y)

    found = perform(gradient_flow, patient_of(model, compute))
    assert set(found["names"]) <= {"pick.weight", "pick.bias"}
    assert found["blocked"] >= 1
    assert found["cuts"][0]["kind"] == "argmax"


@pytest.mark.parametrize("softmax", [True, False])
def test_probabilities_at_the_loss_are_seen(model, data, softmax: bool) -> None:
    x, y = data

    def compute() -> Tensor:
        logits = model(x)
        return F.cross_entropy(logits.softmax(-1) if softmax else logits, y)

    (site,) = perform(loss_input, patient_of(model, compute, compute))["sites"]
    assert site["probabilities"] == softmax
    assert site["steps"] == 2
    assert site["made_by"]["op"] == ("softmax" if softmax else "linear")


@pytest.mark.parametrize("mixed", [True, False])
def test_half_precision_and_its_losses(mixed: bool) -> None:
    model = nn.Linear(D, C)
    x = torch.randn(N, D)

    def compute() -> Tensor:
        h = model(x)
        return ((h.half() * 1e-4).float() * 1e-4).mean() if mixed else h.square().mean()

    found = perform(half_gradients, patient_of(model, compute))
    assert ("float16" in found["dtypes"]) == mixed
    assert found["gradient_lost"] == (1.0 if mixed else 0.0)


@pytest.mark.parametrize("scale", [1.0, 2.0**-18])
def test_a_larger_loss_brings_back_what_float16_cannot_hold(data, scale: float) -> None:
    """Between 6e-8 and 6e-5 numbers lose their bits one by one: few of them are 0."""
    x, _ = data
    model = nn.Linear(D, C)

    def compute() -> Tensor:
        return (model(x).half().float() * scale).square().mean() / scale

    found = perform(half_gradients, patient_of(model, compute))
    assert found["gradient_lost"] < 0.5
    if scale == 1.0:
        assert found["error"] < 2e-3
    else:
        assert found["error"] > 0.05
        assert found["error_scaled"] < 2e-3


def test_the_ladder_orders_precisions(model, data) -> None:
    x, y = data
    rungs = perform(precision_ladder, patient_of(model, lambda: F.cross_entropy(model(x), y)))[
        "rungs"
    ]
    assert rungs["float32"]["gradient"] < 1e-5 < rungs["float16"]["gradient"]
    assert rungs["float16"]["gradient"] < rungs["bfloat16"]["gradient"] < 0.2


def test_the_ladder_tells_where_float16_overflows(model, data) -> None:
    x, y = data

    def rung(compute: Callable[[], Tensor]) -> dict[str, Any]:
        return perform(precision_ladder, patient_of(model, compute))["rungs"]["float16"]

    forward = rung(lambda: F.cross_entropy(model(x * 1e6) * 1e-6, y))
    assert forward["overflow"]["op"] in ("mul", "__mul__", "linear")

    def steep() -> Tensor:
        """The loss is 0, its gradient by a bias is a sum of 3e4 over the rows."""
        scores = model(x)
        return ((scores - scores.detach()) * 3e4).sum()

    backward = rung(steep)
    assert backward["loss"] == 0.0
    assert backward["overflow"]["op"] == "backward"
    assert rung(lambda: F.cross_entropy(model(x), y))["overflow"] is None


@pytest.mark.parametrize(("fault", "outcome"), [("none", "pass"), ("tile", "wrong")])
def test_finite_differences_are_a_second_opinion(model, data, fault, outcome) -> None:
    found = perform(finite_difference, by_function(model, data, fault))
    assert (found["difference"] > 10 * found["noise"]) == (outcome == "wrong")
    assert len(found["directions"]) >= 3


def test_finite_differences_know_the_steps_own_rounding(model, data) -> None:
    x, y = data

    def in_bfloat16() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    found = perform(finite_difference, patient_of(model, in_bfloat16))
    assert found["difference"] > 1e-4
    assert found["noise"] > found["difference"]
    assert found["outcome"] != "wrong"


def test_finite_differences_leave_the_padding_row_of_a_tied_table_alone() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(7, 5, padding_idx=0)
    nn.init.normal_(table.weight)
    tokens, targets = torch.tensor([0, 3, 4, 0, 2]), torch.tensor([3, 4, 1, 2, 6])
    loss = lambda: F.cross_entropy(table(tokens) @ table.weight.T, targets)  # noqa: E731
    found = perform(finite_difference, patient_of(table, loss))
    assert found["outcome"] == "pass"


def test_exams_leave_no_trace(model, data) -> None:
    patient = by_function(model, data, "none")
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    kept = [(p.grad, p.detach().clone()) for p in model.parameters()]
    random = torch.get_rng_state()
    for exam in (
        tape_gradient,
        functions_alone,
        printed_loss,
        loss_coefficient,
        gradient_flow,
        loss_input,
    ):
        exam(patient)
    assert torch.equal(random, torch.get_rng_state())
    for parameter, (gradient, value) in zip(model.parameters(), kept):
        assert parameter.grad is gradient
        assert bool((gradient == 1).all())
        assert torch.equal(parameter, value)


@pytest.mark.parametrize(
    ("how", "passes", "meant"),
    [
        *((how, 1.0, True) for how in ("round", "sign", "where", "compared")),
        *((how, 0.5, False) for how in ("round", "sign", "where")),
        *((how, 1.0, False) for how in ("no level", "cut off")),
    ],
)
def test_straight_through_a_scale_that_has_a_derivative(
    how: str, passes: float, meant: bool
) -> None:
    model = nn.Linear(4, 6)
    x = torch.randn(12, 4)

    def compute() -> Tensor:
        return Quantised.apply(model(x), how, passes).square().mean()

    (alone,) = perform(functions_alone, patient_of(model, compute))["functions"]
    assert alone["difference"] > 0.1
    assert alone["surrogate"] is meant
    assert alone["rounds"] is (how == "round")


def test_a_write_that_autograd_does_not_notice_is_named() -> None:
    model = nn.Linear(4, 6)
    x, y = torch.randn(12, 4), torch.randint(6, (12, 1))

    def compute(copied: bool) -> Tensor:
        chances = model(x).softmax(-1)
        loss = -chances.gather(1, y).log().mean()
        others = chances.detach().clone() if copied else chances.data
        others.scatter_(1, y, 0.0)
        return loss

    write = perform(tape_gradient, patient_of(model, lambda: compute(False)))["written_over"]
    assert (write["op"], write["difference"]) == ("scatter_", 0.0)
    assert __file__.rpartition("/")[2] in write["line"]
    assert perform(tape_gradient, patient_of(model, lambda: compute(True)))["written_over"] is None


@pytest.mark.parametrize(("twice", "found"), [(True, 1), (False, 0)])
def test_a_softmax_of_a_teachers_probabilities_is_seen(twice: bool, found: int) -> None:
    model = nn.Linear(4, 6)
    teacher = nn.Linear(4, 6).requires_grad_(False)
    x = torch.randn(12, 4)

    def compute() -> Tensor:
        scores = teacher(x)
        if twice:
            scores = scores.softmax(-1)
        targets = (scores / 1.5).softmax(-1)
        return F.kl_div(model(x).log_softmax(-1), targets, reduction="batchmean")

    values = perform(loss_input, patient_of(model, compute))
    assert len(values["softmaxes"]) == found


@pytest.mark.parametrize(("squashed", "found"), [(True, 1), (False, 0)])
def test_a_logsumexp_of_probabilities_is_seen(squashed: bool, found: int) -> None:
    model = nn.Linear(4, 6)
    x, y = torch.randn(12, 4), torch.randint(6, (12, 1))

    def compute() -> Tensor:
        scores = model(x).softmax(-1) if squashed else model(x)
        return (torch.logsumexp(scores, -1) - scores.gather(1, y).squeeze(1)).mean()

    values = perform(loss_input, patient_of(model, compute))
    said = double_softmax(make_record(exams={"loss_input": dict(values)}))
    assert isinstance(said, Finding) is squashed


class InTheirMemory(torch.autograd.Function):
    """Cross-entropy that writes probabilities over its copy of the scores, as kernels do."""

    @staticmethod
    def forward(ctx, scores, targets):
        held = torch.empty_like(scores)
        held.copy_(scores)
        held.sub_(held.amax(1, keepdim=True)).exp_()
        held.div_(held.sum(1, keepdim=True))
        ctx.save_for_backward(held, targets)
        return -held.gather(1, targets).log().mean()

    @staticmethod
    def backward(ctx, slope):
        held, targets = ctx.saved_tensors
        gradient = held.scatter_add(1, targets, -torch.ones_like(held[:, :1]))
        return gradient * slope / len(targets), None


def test_probabilities_in_the_memory_of_the_scores_are_no_second_softmax() -> None:
    model = nn.Linear(4, 6)
    x, y = torch.randn(12, 4), torch.randint(6, (12, 1))
    values = perform(loss_input, patient_of(model, lambda: InTheirMemory.apply(model(x), y)))
    assert [site["kind"] for site in values["sites"]] == ["probability_gather"]
    assert not isinstance(double_softmax(make_record(exams={"loss_input": dict(values)})), Finding)


def pointwise(scores: Tensor, dim: int) -> Tensor:  # (T, B, C): places are classified one by one
    logs = scores.log_softmax(dim)
    return F.nll_loss(logs.flatten(0, 1), torch.arange(40) % 6)


def along(scores: Tensor, dim: int) -> Tensor:
    lengths = torch.full((5,), 8), torch.full((5,), 3)
    return F.ctc_loss(scores.log_softmax(dim), torch.ones(5, 3, dtype=torch.long), *lengths)


def over_an_image(scores: Tensor, dim: int) -> Tensor:  # (B, C, H, W)
    image = scores.reshape(2, 4, 6, 5).movedim(2, 1)
    logs = image.log_softmax({2: 1, 1: 0, 0: 2}[dim])
    return F.nll_loss(logs, torch.zeros(2, 4, 5, dtype=torch.long))


@pytest.mark.parametrize("loss", [pointwise, along, over_an_image])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_log_probabilities_over_another_axis_are_seen(
    loss: Callable[[Tensor, int], Tensor], dim: int
) -> None:
    model = nn.Linear(4, 6)
    x = torch.randn(8, 5, 4)
    values = perform(loss_input, patient_of(model, lambda: loss(model(x), dim)))
    said = double_softmax(make_record(exams={"loss_input": dict(values)}))
    # Flattened, places and rows are one axis: a softmax over one of them shows over neither.
    hidden = loss is pointwise and dim < 2
    assert isinstance(said, Finding) is (dim < 2 and not hidden)
    if values["crossed"]:
        assert values["crossed"][0]["axis"] != values["crossed"][0]["classes"]


ERRORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squares": lambda made, wanted: ((made - wanted) ** 2).mean(),
    "turned": lambda made, wanted: (wanted - made).square().sum() / len(made),
    "absolute": lambda made, wanted: (made - wanted).abs().mean(),
    "torch's": lambda made, wanted: F.smooth_l1_loss(made, wanted),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("asked", [False, True], ids=["data", "target network"])
@pytest.mark.parametrize(
    ("squeezed", "crossed"), [(False, True), (True, False)], ids=["all with all", "one by one"]
)
def test_a_prediction_is_compared_with_its_own_target(
    error: str, asked: bool, squeezed: bool, crossed: bool
) -> None:
    model, target = nn.Linear(4, 1), nn.Linear(4, 1)
    x, y = torch.randn(12, 4), torch.randn(12)

    def compute() -> Tensor:
        wanted = y
        if asked:
            with torch.no_grad():
                wanted = y + 0.9 * target(x).squeeze(-1)
        made = model(x)
        return ERRORS[error](made.squeeze(-1) if squeezed else made, wanted)

    values = perform(shift, patient_of(model, compute))
    said = targets_misaligned(make_record(exams={"shift": dict(values)}))
    assert isinstance(said, Finding) is crossed


def test_differences_of_all_pairs_that_are_meant_are_left_alone() -> None:
    model = nn.Linear(4, 1)
    x, y = torch.randn(12, 4), torch.randn(12, 1)

    def compute() -> (
        Tensor
    ):  # a distance of distributions: every pair counts, and two axes are made for it
        return (model(x).unsqueeze(1) - y.unsqueeze(0)).abs().mean()

    assert perform(shift, patient_of(model, compute))["outer"] == []


def test_scores_of_one_sum_are_no_probabilities() -> None:
    """A teacher that is made up: as many likely followers for every token."""
    model = nn.Linear(4, 6)
    x = torch.randn(12, 4)
    scores = torch.stack([6.0 * (torch.randperm(6) < 2) for _ in range(12)])

    def compute() -> Tensor:
        targets = (scores / 2.0).softmax(-1)
        return F.kl_div(model(x).log_softmax(-1), targets, reduction="batchmean")

    assert perform(loss_input, patient_of(model, compute))["softmaxes"] == []


def test_labels_that_a_softmax_smooths_are_no_probabilities() -> None:
    model = nn.Linear(4, 6)
    x, y = torch.randn(12, 4), torch.randint(6, (12,))

    def compute() -> Tensor:
        targets = (5.0 * F.one_hot(y, 6).float()).softmax(-1)
        return F.kl_div(model(x).log_softmax(-1), targets, reduction="batchmean")

    assert perform(loss_input, patient_of(model, compute))["softmaxes"] == []


@pytest.mark.parametrize(("standardised", "same"), [(False, True), (True, False)])
def test_row_losses_by_hand_sent_back_with_weights_are_held_against_their_mean(
    tmp_path, standardised: bool, same: bool
) -> None:
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            x = torch.randn(24, 4)
            rows = (model(x) - x.sum(1, keepdim=True)).pow(2).mean(1)
            weights = torch.ones(24)
            if standardised:
                weights = (rows.detach() - rows.mean().detach()) / rows.detach().std()
            optimizer.zero_grad()
            rows.backward(weights / 24)
            optimizer.step()
            rows.mean().item()
        values = perform(printed_loss, watch.patient)
    finally:
        watch.close("done")
    assert (values["cosine"] > 0.9999) == same


@pytest.mark.parametrize(("size", "out"), [(0.5, False), (60.0, True)])
def test_first_predictions_are_held_against_the_numbers_they_are_to_be(
    size: float, out: bool
) -> None:
    model = nn.Linear(16, 1)
    nn.init.normal_(model.weight, std=size)
    x, y = torch.randn(40, 16), torch.randn(40, 1)
    values = perform(init_scale, patient_of(model, lambda: F.mse_loss(model(x), y)))
    assert (values["prediction_ratio"] > 10) == out


def test_losses_that_are_read_beside_their_margins_still_span_the_gradient() -> None:
    """Five micro-batches, each with two numbers whose gradients are parallel to rounding."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 4000, generator=generator)
    noisy = rows * (1 + 1e-7 * torch.randn(rows.shape, generator=generator))
    target = rows.sum(0)
    assert projection(target, torch.cat([rows, -3 * noisy])) == pytest.approx(1.0, abs=1e-6)
    assert projection(target, rows[:1]) == pytest.approx(5**-0.5, abs=0.03)
    assert projection(torch.zeros(4000), rows) == 0.0


def test_why_no_step_could_be_replayed_is_told() -> None:
    patient = Patient()
    assert tape_gradient(patient).reason == "no step could be repeated"
    patient.refusals[0] = "the loss contains gradients of gradients"
    for exam in (tape_gradient, gradient_flow, printed_loss):
        result = exam(patient)
        assert result.outcome == "refused"
        assert result.reason == (
            "no step could be repeated: the loss contains gradients of gradients"
        )


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("how", ["detach", "no_grad", "checkpoint"])
@pytest.mark.parametrize("role", ["teacher", "never trained", "encoder"])
def test_what_an_earlier_stage_has_trained_may_teach(role: str, how: str) -> None:
    """Its parameters lie in the optimizer still. An encoder whose result the next layer works on was cut by mistake."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    second = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    both, x, y = nn.ModuleList([first, second]), torch.randn(8, 6), torch.randint(6, (8,))

    def cut() -> Tensor:
        if how == "checkpoint":  # reentrant, of an input that wants no gradient
            return checkpoint(first, x, use_reentrant=True)
        with torch.set_grad_enabled(how != "no_grad"):
            made = first(x)
        return made.detach() if how == "detach" else made

    def taught() -> Tensor:
        return -(cut().softmax(-1) * second(x).log_softmax(-1)).sum(-1).mean()

    def fed() -> Tensor:
        return F.cross_entropy(second(F.gelu(cut())), y)

    patient = patient_of(
        both,
        lambda: F.cross_entropy((second if role == "never trained" else first)(x), y),
        fed if role == "encoder" else taught,
    )
    patient.tapes[1].stage = 1
    with patient.at_stage(1):
        found = perform(gradient_flow, patient)
    assert found["blocked"] == (0 if role == "teacher" else 4)
