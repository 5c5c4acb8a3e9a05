"""K steps run again: the control is the run, a change is what it says, and the run does not notice."""

from __future__ import annotations

import gc
import math
from types import FunctionType, ModuleType
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from odd_optimizers import Counting, Langevin, Lion, Lookahead
from short_runs import STEPS, B, T, Tiny, batch, run
from traindoctor.capture import counting
from traindoctor.capture.hub import hub
from traindoctor.capture.watch import Watch
from traindoctor.errors import ReplayError
from traindoctor.exams.counterfactual import (
    experiment_clip,
    experiment_loss_scale,
    experiment_rate_down,
    experiment_rate_up,
    experiment_schedule,
)
from traindoctor.experiment.snapshot import FIRST_STEPS, HELD_OUT, Keeper
from traindoctor.experiment.trial import Change, Plan, clip, has_blown


def first_plan(watch: Watch) -> Plan:
    keeper = watch.patient.snapshot
    outside = keeper.outside.nearest(0)
    return Plan.of(
        keeper.first, watch.patient.tapes, keeper.logs, steps=FIRST_STEPS, outside=outside
    )


VARIANTS = {
    "adam": {},
    "dropout": {"dropout": 0.3},
    "momentum": {"make": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
    "clipped": {"limit": 0.05},
    "accumulated": {"micro": 3},
    "decay by hand": {"shrink": 0.98},
    "decay by hand before the step": {"shrink_before": 0.98},
    "scheduled": {
        "schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=STEPS + 1)
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_control_repeats_the_run(tmp_path, name: str) -> None:
    watch, losses, _ = run(tmp_path, **VARIANTS[name])
    plan = first_plan(watch)
    control = plan.control()
    assert plan.steps == FIRST_STEPS
    assert control.losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)
    assert plan.fidelity(control) < 1e-5
    assert plan.unit == pytest.approx(3.0 if name == "accumulated" else 1.0)


def test_watching_with_snapshots_leaves_the_run_as_it_is(tmp_path) -> None:
    watch, losses, model = run(tmp_path, dropout=0.2)
    plan = first_plan(watch)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    plan.run(Change(rate=lambda _: 3.0))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    _, bare_losses, bare = run(tmp_path, dropout=0.2, replay=False)
    assert losses == bare_losses
    for a, b in zip(model.parameters(), bare.parameters()):
        assert torch.equal(a, b)


def test_a_proven_optimizer_of_the_scripts_own_is_repeated(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, lambda p: Lion(p, lr=3e-3))
    assert first_plan(watch).control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)


@pytest.mark.parametrize("kind", [Lookahead, Langevin])
def test_an_optimizer_without_a_rule_has_no_experiments(tmp_path, kind) -> None:
    watch, _, _ = run(tmp_path, kind)
    with pytest.raises(ReplayError, match="not possible for this optimizer: " + kind.__name__):
        first_plan(watch)


def test_a_snapshot_holds_nothing_of_the_scripts_optimizer(tmp_path) -> None:
    optimizers = []
    watch, _, _ = run(tmp_path, lambda p: optimizers.append(Counting(p)) or optimizers[0])
    own = optimizers.pop()
    kept = watch.patient.snapshot.first.rule
    assert kept.attributes["history"] == []
    assert len(own.history) == STEPS
    watch.close("done")
    found: dict[int, object] = {}
    queue: list[object] = [watch.patient.snapshot.first]
    while queue:
        one = queue.pop()
        if id(one) not in found and not isinstance(one, type | ModuleType | FunctionType):
            found[id(one)] = one
            queue += gc.get_referents(one)
    assert id(kept) in found
    assert not {id(own), id(own.history), *map(id, own.param_groups)} & found.keys()


def test_a_changed_rate_is_the_run_at_that_rate(tmp_path) -> None:
    watch, _, _ = run(tmp_path / "a")
    _, slower, _ = run(tmp_path / "b", lambda p: torch.optim.Adam(p, lr=1e-3), replay=False)
    trial = first_plan(watch).run(Change(rate=lambda _: 0.1))
    assert trial.losses == pytest.approx(slower[:FIRST_STEPS], abs=1e-5)


def test_a_changed_limit_is_the_run_with_that_limit(tmp_path) -> None:
    sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    watch, _, _ = run(tmp_path / "a", sgd, limit=0.01)
    _, wider, _ = run(tmp_path / "b", sgd, limit=0.1, replay=False)
    trial = first_plan(watch).run(Change(limit=10.0))
    assert trial.losses == pytest.approx(wider[:FIRST_STEPS], abs=1e-5)


def test_a_limit_that_the_script_has_not_is_the_run_with_it(tmp_path) -> None:
    sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    watch, _, _ = run(tmp_path / "a", sgd)
    _, clipped, _ = run(tmp_path / "b", sgd, limit=0.1, replay=False)
    trial = first_plan(watch).run(Change(clip_at=0.1))
    assert trial.losses == pytest.approx(clipped[:FIRST_STEPS], abs=1e-5)


def test_without_the_decay_by_hand_it_is_the_run_without_it(tmp_path) -> None:
    watch, _, _ = run(tmp_path / "a", shrink=0.95)
    _, plain, _ = run(tmp_path / "b", replay=False)
    trial = first_plan(watch).run(Change(decay_by_hand=False))
    # The snapshot of step 0 was taken before the first shrinking.
    assert trial.losses == pytest.approx(plain[:FIRST_STEPS], abs=1e-5)


def test_a_recent_snapshot_has_the_state_of_its_step(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, dropout=0.2, steps=100)
    keeper = watch.patient.snapshot
    assert [s.step for s in keeper.recent] == [60, 90]
    latest = keeper.latest
    begin = latest.step  # 60, or an earlier one where the machine left no time
    assert begin >= 20
    plan = Plan.of(latest, watch.patient.tapes, keeper.logs, steps=20)
    assert plan.control().losses == pytest.approx(losses[begin : begin + 20], abs=1e-5)


def test_a_batch_of_another_shape_now_and_then_is_left_out(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, width=lambda k: T - 1 if k % 10 == 9 else T)
    plan = first_plan(watch)
    assert plan.steps == FIRST_STEPS + HELD_OUT - 4 - HELD_OUT
    assert plan.control().losses[:9] == pytest.approx(losses[:9], abs=1e-5)


def test_batches_of_many_shapes_are_replayed_on_a_stretched_tape(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, width=lambda k: T + k % 12)
    plan = first_plan(watch)
    assert plan.steps == FIRST_STEPS
    assert plan.control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)
    assert plan.fidelity(plan.control()) < 1e-5


def by_hand(logits: Tensor, y: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, y[..., None]).mean()


def test_targets_of_a_loss_by_hand_are_found_in_a_variable(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, loss_of=by_hand, steps=100)
    assert first_plan(watch).control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)
    keeper = watch.patient.snapshot
    plan = Plan.of(keeper.latest, watch.patient.tapes, keeper.logs, steps=20)
    begin = keeper.latest.step
    assert plan.control().losses == pytest.approx(losses[begin : begin + 20], abs=1e-5)


def test_each_of_several_passes_has_a_batch_of_its_own_in_the_same_variable(tmp_path) -> None:
    watch, losses, _ = run(tmp_path, loss_of=by_hand, micro=3)
    # Of a loss by hand nobody knows what it is a mean of: it is told as it is optimised, the sum of the passes.
    optimised = [3 * loss for loss in losses[:FIRST_STEPS]]
    assert first_plan(watch).control().losses == pytest.approx(optimised, abs=1e-5)


def test_numbers_that_a_later_pass_draws_are_followed(tmp_path) -> None:
    """The second micro-batch of floats is drawn while the step is taped, and flattened on its way in."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watch, losses = Watch(tmp_path, budget=1.0), []
    watch.attach()
    try:
        for _ in range(STEPS):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(2):
                x = torch.randn(6, 3, 4).cumsum(1)
                loss = nn.functional.mse_loss(model(x), x.mean(1)[:, :2])
                loss.backward()
                total += loss.item() / 2  # a replay tells the mean of the passes
            optimizer.step()
            losses.append(total)
    finally:
        watch.detach()
    assert first_plan(watch).control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)
    watch.close("done")


def test_variables_are_looked_at_only_where_they_are_needed(tmp_path) -> None:
    needed, _, _ = run(tmp_path / "a", loss_of=by_hand)
    assert needed.patient.snapshot.looks_at_variables
    spared, _, _ = run(tmp_path / "b")
    assert not spared.patient.snapshot.looks_at_variables
    held = [{kind for kind, _, _ in log.data} for log in spared.patient.logs()]
    assert "variable" in held[0]
    assert "variable" not in held[-1]


def test_data_that_cannot_be_followed_is_refused_with_its_shape(tmp_path) -> None:
    numbers = np.random.default_rng(0)

    def drawn_inside(logits: Tensor, y: Tensor) -> Tensor:
        """Targets that no variable holds any more when backward is called."""
        return by_hand(logits, torch.from_numpy(numbers.integers(0, logits.shape[-1], y.shape)))

    watch, _, _ = run(tmp_path, loss_of=drawn_inside)
    with pytest.raises(ReplayError, match="could not be traced"):
        first_plan(watch)


def test_a_loss_module_gets_its_targets_from_its_arguments(tmp_path) -> None:
    criterion = nn.CrossEntropyLoss()
    watch, losses, _ = run(tmp_path, loss_of=lambda z, y: criterion(z.flatten(0, 1), y.flatten()))
    assert first_plan(watch).control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)


def test_a_model_above_the_bound_has_no_snapshot_and_a_reason(tmp_path) -> None:
    from traindoctor.events import StepBegin
    from traindoctor.ground.names import Names

    model = Tiny()
    keeper = Keeper(Names(model), max_bytes=100)
    keeper.on(StepBegin(torch.optim.SGD(model.parameters(), lr=0.1), 0), 0)
    assert keeper.first is None
    assert "bound" in keeper.refusal


def test_a_pass_that_only_tries_the_model_does_not_take_the_first_steps_place(
    tmp_path, monkeypatch
) -> None:
    # Other tests' may still be there.
    monkeypatch.setattr(counting, "optimizers_alive", list)
    monkeypatch.setattr(hub, "optimizers", WeakKeyDictionary())
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        torch.manual_seed(0)
        model = Tiny()
        x, y = batch()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        model.zero_grad()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(STEPS):
            x, y = batch()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    finally:
        watch.detach()
    assert watch.patient.snapshot.first.step == 1
    assert first_plan(watch).control().losses == pytest.approx(losses[:FIRST_STEPS], abs=1e-5)
    watch.close("done")


def test_a_wider_limit_is_no_matter_to_adam(tmp_path) -> None:
    """Every gradient is cut to the limit: what Adam divides by is cut as well, and always was."""
    watch, _, _ = run(tmp_path, lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-12), limit=1e-4)
    keeper = watch.patient.snapshot
    plan = Plan.of(keeper.latest, watch.patient.tapes, keeper.logs, steps=20)
    assert keeper.latest.step > 0
    assert plan.run(Change(limit=10.0)).judged == pytest.approx(plan.control().judged, abs=1e-5)


def test_a_sum_over_targets_is_judged_per_target(tmp_path) -> None:
    summed = lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")  # noqa: E731
    watch, losses, _ = run(tmp_path, loss_of=summed)
    plan = first_plan(watch)
    assert plan.unit == B * T
    assert plan.control().losses[0] == pytest.approx(losses[0] / (B * T))


def test_a_sum_that_is_divided_by_its_targets_is_none(tmp_path) -> None:
    """As the Hugging Face Trainer does it."""

    def divided(logits, y):
        total = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        return total / torch.tensor(float(y.numel()))

    watch, losses, _ = run(tmp_path, loss_of=divided)
    plan = first_plan(watch)
    assert plan.unit == pytest.approx(1.0)
    assert plan.control().losses[0] == pytest.approx(losses[0])


def test_more_steps_than_batches_go_through_them_again(tmp_path) -> None:
    watch, losses, _ = run(tmp_path)
    plan = first_plan(watch)
    longer = plan.longer(3)
    trial = longer.control()
    assert longer.steps == len(trial.losses) == 3 * plan.steps
    assert trial.losses[: plan.steps] == pytest.approx(losses[: plan.steps], abs=1e-5)
    assert trial.judged < plan.control().judged


# -- the exams -------------------------------------------------------------------------------------


def test_rate_down_cures_a_run_that_blows_up_and_not_a_healthy_one(tmp_path) -> None:
    wild, _, _ = run(tmp_path / "a", lambda p: torch.optim.SGD(p, lr=60.0, momentum=0.9))
    values = experiment_rate_down(wild.patient).values
    assert values["control"]["blown"]
    assert all(p["blown"] for p in values["permuted"])
    assert len(values["permuted"]) == 2
    assert "clipped" in values["variants"]
    calm, _, _ = run(tmp_path / "b")
    values = experiment_rate_down(calm.patient).values
    assert values["variants"]["lr/3"]["loss"] > values["control"]["loss"]
    assert values["variants"]["lr/10"]["loss"] > values["control"]["loss"]
    assert "warmup" not in values["variants"]  # nothing helps: the rest is spared


def test_rate_up_and_schedule_find_the_gain_that_is_left(tmp_path) -> None:
    slow, _, _ = run(tmp_path / "a", lambda p: torch.optim.Adam(p, lr=1e-6))
    result = experiment_rate_up(slow.patient)
    assert result.done, result.reason
    assert result.values["variants"]["lr*100"]["loss"] < result.values["control"]["loss"]
    assert "lr*10000" in result.values["variants"]  # 1e-6 is short by four powers of ten
    assert 0 <= result.values["kl_per_update"] < 1e-6
    dead, _, _ = run(
        tmp_path / "b", schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)
    )
    values = experiment_schedule(dead.patient).values
    assert values["variants"]["highest rate"]["loss"] < values["control"]["loss"] - 0.1


def test_loss_scale_divides_by_the_number_of_passes(tmp_path) -> None:
    watch, _, _ = run(tmp_path / "a", lambda p: torch.optim.SGD(p, lr=0.5), micro=3)
    values = experiment_loss_scale(watch.patient).values
    assert values["passes"] == 3
    assert math.isfinite(values["variants"]["loss/n"]["loss"])
    single, _, _ = run(tmp_path / "b")
    assert not experiment_loss_scale(single.patient).done
    assert not experiment_clip(single.patient).done


def test_clip_is_torchs_clip() -> None:
    torch.manual_seed(0)
    model = Tiny()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    ours = {n: p.grad.clone() for n, p in model.named_parameters()}
    clip(ours, list(ours), "norm", 0.7)
    nn.utils.clip_grad_norm_(model.parameters(), 0.7)
    for name, p in model.named_parameters():
        torch.testing.assert_close(ours[name], p.grad)
    clip(ours, ["head.bias"], "value", 1e-3)
    assert ours["head.bias"].abs().max() <= 1e-3


def test_an_experiment_repeats_half_of_the_steps_where_time_is_short(tmp_path) -> None:
    watch, _, _ = run(tmp_path)
    assert watch is not None
    try:
        patient = watch.patient
        assert experiment_rate_down(patient).values["steps"] == FIRST_STEPS
        patient.seconds = 1e-6
        assert experiment_rate_down(patient).values["steps"] == FIRST_STEPS // 2
    finally:
        watch.close("done")


@pytest.mark.parametrize(
    ("losses", "blown"),
    [
        ([3.0, 2.9, 9.0, 2.8], False),  # one batch of outliers
        ([3.0, 9.0, 2.9, 9.0, 2.8, 9.0], False),
        ([3.0, 9.0, 9.0, 9.0], True),
        ([3.0, 2.9, math.inf], True),
    ],
)
def test_a_run_has_blown_up_if_its_loss_stays_high(losses: list[float], blown: bool) -> None:
    assert has_blown(losses) == blown
