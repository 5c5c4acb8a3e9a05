"""Coverage, rates, state age, clip order, update and moments on tiny runs whose answer is known."""

from __future__ import annotations

import copy
import gc
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Clear, Finding, NotJudged
from traindoctor.checks.gradient.clip_ineffective import clip_ineffective
from traindoctor.checks.gradient.missing_zero_grad import missing_zero_grad
from traindoctor.events import BackwardBegin, ForwardBegin, StepBegin, StepEnd
from traindoctor.ground.names import Names
from traindoctor.probes.clip_order import ClipOrder
from traindoctor.probes.clipping import Clipping
from traindoctor.probes.coverage import Coverage, live_optimizers, trained_before
from traindoctor.probes.leftover import Leftover
from traindoctor.probes.optimizer_state import MEASURED, OptimizerState, decouples, moments
from traindoctor.probes.rates import Rates
from traindoctor.probes.state_age import StateAge
from traindoctor.probes.update import Update
from traindoctor.record import Record, RecordWriter, open_record


class Two(nn.Module):
    """Two layers with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(torch.tanh(self.body(x))))


def watched(tmp_path: Path, train, *probes) -> Record:
    """Runs `train` under a watch with only these probes."""
    gc.collect()  # optimizers of other tests that still lie about would be counted
    # A budget that no slow machine uses up: every step is heard.
    watch = Watch(tmp_path, replay=False, probes=list(probes), budget=1.0)
    watch.attach()
    try:
        torch.manual_seed(0)
        train()
    finally:
        watch.close("done")
    assert watch.faults == []
    return open_record(tmp_path)


def step(model, *optimizers, clip=None, before_step=None) -> None:
    loss = model(torch.randn(5, 4)).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        clip()
    for optimizer in optimizers:
        optimizer.step()


# -- coverage --------------------------------------------------------------------------------------


def coverage(tmp_path: Path, train) -> dict:
    return watched(tmp_path, train, Coverage()).fact("optimizer.coverage")


def test_everything_held_is_complete(tmp_path) -> None:
    def train() -> None:
        model = Two()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            step(model, optimizer)

    found = coverage(tmp_path, train)
    assert found["num_missing"] == found["num_stale"] == found["doubled"] == 0
    assert found["trainable"] == 6
    assert found["trained_before"] is False


def test_a_head_left_out_is_missing_with_its_share_of_the_gradient(tmp_path) -> None:
    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
        for _ in range(5):
            step(model, optimizer)

    found = coverage(tmp_path, train)
    assert [m["name"] for m in found["missing"]] == [
        "norm.weight",
        "norm.bias",
        "head.weight",
        "head.bias",
    ]
    assert found["missing"][0]["looks_with_gradient"] == 5
    assert 0.5 < found["missing_share"] <= 1.0


class Listed(nn.Module):
    """Layers in a plain list: torch does not count them as the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(2)]
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def test_layers_in_a_plain_list_are_missing(tmp_path) -> None:
    def train() -> None:
        model = Listed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            step(model, optimizer)

    found = coverage(tmp_path, train)
    names = [m["name"] for m in found["missing"]]
    assert names == ["layers[0].weight", "layers[0].bias", "layers[1].weight", "layers[1].bias"]


def test_frozen_parameters_are_not_missing(tmp_path) -> None:
    def train() -> None:
        model = Two()
        model.body.requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(5):
            step(model, optimizer)

    found = coverage(tmp_path, train)
    assert found["num_missing"] == 0
    assert found["frozen"] == 2


def test_a_layer_replaced_after_the_optimizer_was_built_is_stale_and_missing(tmp_path) -> None:
    def train() -> None:
        model = Two()
        optimizer = torch.optim.Adam(model.parameters())
        model.head = nn.Linear(4, 5)
        for _ in range(6):
            step(model, optimizer)

    found = coverage(tmp_path, train)
    assert [m["name"] for m in found["missing"]] == ["head.weight", "head.bias"]
    assert [s["shape"] for s in found["stale"]] == [[3, 4], [3]]


def test_a_layer_replaced_before_a_second_stage_is_stale_though_it_was_trained(tmp_path) -> None:
    def train() -> None:
        model = Two()
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            step(model, first)
        second = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(model.head.in_features, 3)
        for _ in range(6):
            step(model, second)

    found = coverage(tmp_path, train)
    assert found["num_missing"] == 2
    assert found["num_stale"] >= 2


@pytest.mark.parametrize("steps", [30, 60], ids=["seen at the end", "seen on the way"])
def test_a_layer_replaced_while_its_optimizer_goes_on(tmp_path, steps: int) -> None:
    """A vocabulary that grows in the middle of a run. The old weights keep the last gradient they had."""
    alive = []

    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(steps):
            if number == 12:
                model.head = nn.Linear(model.head.in_features, model.head.out_features + 2)
            loss = model(torch.randn(5, 4)).square().mean()
            model.zero_grad()
            loss.backward()
            optimizer.step()
        if steps == 30:
            alive.extend([model, optimizer])

    found = coverage(tmp_path, train)
    assert [m["name"] for m in found["missing"]] == ["head.weight", "head.bias"]
    assert [s["shape"] for s in found["stale"]] == [[3, 4], [3]]


def test_what_is_gone_at_the_end_is_not_looked_at(tmp_path) -> None:
    """A script that trains in a function: its optimizer is gone, its model is kept."""
    alive = []

    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(15):
            step(model, optimizer)
        alive.append(model)

    found = coverage(tmp_path, train)
    assert found["num_missing"] == found["num_stale"] == 0
    assert found["held"] == found["trainable"]


class Sparse(Coverage):
    """As in a run of short steps: after the first ones, one in seven is heard."""

    def on(self, event, *, due: bool) -> None:
        if not isinstance(event, StepBegin) or event.step < 64 or event.step % 7 == 0:
            super().on(event, due=due)


def test_a_second_stage_of_which_few_steps_are_heard(tmp_path) -> None:
    def train() -> None:
        model = Two()
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(71):
            step(model, first)
        second = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(model.head.in_features, 3)
        for _ in range(60):
            step(model, second)

    found = watched(tmp_path, train, Sparse()).fact("optimizer.coverage")
    assert found["num_missing"] == 2
    assert found["num_stale"] >= 2
    assert found["looks"] >= 4


def test_an_optimizer_over_an_old_copy_of_the_model(tmp_path) -> None:
    def train() -> None:
        old = Two()
        optimizer = torch.optim.Adam(old.parameters())
        model = copy.deepcopy(old)
        for _ in range(6):
            loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            optimizer.step()

    found = coverage(tmp_path, train)
    assert found["num_missing"] == found["num_stale"] == 6


def test_models_that_were_trained_before_lack_nothing(tmp_path) -> None:
    """They keep their last gradients when their optimizers are gone."""
    kept = []

    def train() -> None:
        for _ in range(4):
            model = Two()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(6):
                step(model, optimizer)
            kept.append(model)

    assert coverage(tmp_path, train)["num_missing"] == 0


def test_two_players_with_an_optimizer_each_lack_nothing(tmp_path) -> None:
    def train() -> None:
        maker, judge = Two(), nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, judge)]
        for k in range(8):
            judge(maker(torch.randn(5, 4))).mean().backward()
            optimizers[k % 2].step()
            for optimizer in optimizers:
                optimizer.zero_grad()

    assert coverage(tmp_path, train)["num_missing"] == 0


def test_a_resting_expert_and_an_averaged_copy_are_neither(tmp_path) -> None:
    def train() -> None:
        model, unused = Two(), nn.Linear(4, 4)
        model.expert = unused
        average = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(6):
            step(model, optimizer)
            with torch.no_grad():
                average(torch.randn(5, 4))

    found = coverage(tmp_path, train)
    assert found["num_missing"] == found["num_stale"] == 0


def test_trained_weights_show_in_the_gains() -> None:
    model = Two()
    assert trained_before([model]) is False
    with torch.no_grad():
        model.norm.weight[0] = 1.5
    assert trained_before([model]) is True
    assert trained_before([nn.Linear(2, 2)]) is None


def test_a_run_that_never_steps_says_whether_weights_change(tmp_path) -> None:
    def train(by_hand: bool) -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(60):
            model(torch.randn(5, 4)).square().mean().backward()
            if by_hand:
                with torch.no_grad():
                    for p in model.parameters():
                        p -= 0.01 * p.grad
        del optimizer

    for by_hand in (False, True):
        gc.collect()
        others = len(live_optimizers())  # of other tests of this process
        found = watched(tmp_path / str(by_hand), lambda b=by_hand: train(b), Coverage())
        stepping = found.fact("optimizer.stepping")
        assert stepping["steps"] == 0
        assert stepping["backwards"] >= 40
        assert stepping["optimizers"] == others + 1
        assert stepping["weights_changed"] is by_hand


def test_tensors_that_are_trained_in_the_place_of_parameters(tmp_path) -> None:
    """The module's own parameters never change, and nothing is wrong with that."""

    def train(cleared: bool, functional: bool) -> None:
        model = Two()
        for _ in range(60):
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            leaves = {name: w.requires_grad_() for name, w in weights.items()} if functional else {}
            loss = torch.func.functional_call(model, leaves, (torch.randn(5, 4),)).square().mean()
            if functional:
                torch.autograd.grad(loss, list(leaves.values()))
            else:
                loss.backward()
            if cleared:
                model.zero_grad()

    for number, (cleared, functional) in enumerate([(False, True), (False, False), (True, False)]):
        found = watched(tmp_path / str(number), partial(train, cleared, functional), Coverage())
        stepping = found.fact("optimizer.stepping")
        assert stepping["weights_changed"] is (None if functional else False)


# -- rates -----------------------------------------------------------------------------------------


def test_rates_are_those_the_optimizer_used_and_the_schedule_is_described(tmp_path) -> None:
    alive = []  # a schedule that the script keeps: the steps of one that is gone are counted up to the last step

    def train() -> None:
        model = Two()
        groups = [
            {"params": model.body.parameters()},
            {"params": model.head.parameters(), "lr": 1.0},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        alive.append(schedule)
        for _ in range(4):
            step(model, optimizer)
            schedule.step()

    record = watched(tmp_path, train, Rates())
    assert record["optim.lr"].values == pytest.approx([0.1, 0.05, 0.025, 0.0125])
    by_group = record.layers("optim.lr_by_group").layer("group 1")
    assert by_group.values == pytest.approx([1.0, 0.5, 0.25, 0.125])
    (schedule,) = record.fact("schedule")
    assert schedule["class"] == "ExponentialLR"
    assert schedule["calls"] == 4
    assert record["schedule.calls"].last == 3  # the fourth comes after the last step
    assert schedule["gamma"] == 0.5
    assert schedule["drives_a_stepped_optimizer"] is True
    groups = record.fact("optimizer.groups")[0]
    assert groups["class"] == "SGD"
    assert [g["initial_lr"] for g in groups["groups"]] == [0.1, 1.0]


def test_a_schedule_of_an_optimizer_that_is_not_stepped(tmp_path) -> None:
    alive = []

    def train() -> None:
        model = Two()
        old = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(old, 1)
        alive.append(schedule)
        old.step()  # torch warns when a schedule comes before every step
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(model, optimizer)
            schedule.step()

    record = watched(tmp_path, train, Rates())
    # The first optimizer took one step, so it is known; the scheduler's calls are all the same counted.
    assert record.fact("schedule")[0]["calls"] == 3


# -- the state's age -------------------------------------------------------------------------------


def resets(tmp_path: Path, train) -> list[float]:
    series = watched(tmp_path, train, StateAge()).get("optim.state_reset")
    return [] if series is None else series.values.tolist()


def test_a_state_that_stays_is_never_reset_even_when_it_was_loaded(tmp_path) -> None:
    def train() -> None:
        model = Two()
        before = torch.optim.Adam(model.parameters())
        step(model, before)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(before.state_dict())
        for _ in range(4):
            step(model, optimizer)

    assert resets(tmp_path, train) == [0.0] * 4


@pytest.mark.parametrize("kind", ["new object", "cleared", "momentum", "kept beside"])
def test_a_state_thrown_away_at_each_step(tmp_path, kind: str) -> None:
    def make(model):
        if kind == "momentum":
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return torch.optim.Adam(model.parameters())

    def train() -> None:
        model = Two()
        optimizer, old = make(model), []
        for _ in range(5):
            if kind == "cleared":
                optimizer.state.clear()
            else:
                old += [optimizer] if kind == "kept beside" else []
                optimizer = make(model)
            step(model, optimizer)

    # Of an object that is still there it is known one step later that it does not go on beside the new one.
    assert resets(tmp_path, train) == [1.0] * (3 if kind == "kept beside" else 4)


@pytest.mark.parametrize("replaced", [False, True])
def test_two_optimizers_that_share_a_parameter_reset_nothing(tmp_path, replaced: bool) -> None:
    def train() -> None:
        model = Two()
        first, second = (torch.optim.Adam(model.parameters()) for _ in range(2))
        for _ in range(3):
            step(model, first)
        for _ in range(3):
            step(model, second)
            if not replaced:
                step(model, first)

    assert any(resets(tmp_path, train)) == replaced


@pytest.mark.parametrize("saved", ["the model", "both", "nothing"])
@pytest.mark.parametrize("kind", ["adam", "momentum"])
def test_a_model_that_is_saved_and_loaded_is_the_same_run(tmp_path, saved: str, kind: str) -> None:
    """Other objects each time, and what goes on is known by its values; models of their own begin elsewhere."""

    def train() -> None:
        weights = state = None
        for _ in range(4):
            model = Two()
            momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = torch.optim.Adam(model.parameters()) if kind == "adam" else momentum
            if weights is not None and saved != "nothing":
                model.load_state_dict(weights)
            if state is not None and saved == "both":
                optimizer.load_state_dict(state)
            for _ in range(2):
                step(model, optimizer)
            weights, state = copy.deepcopy(model.state_dict()), optimizer.state_dict()

    assert sum(resets(tmp_path, train)) == (3.0 if saved == "the model" else 0.0)


def test_plain_sgd_has_nothing_to_lose(tmp_path) -> None:
    def train() -> None:
        model = Two()
        for _ in range(4):
            step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert resets(tmp_path, train) == []


# -- clip order ------------------------------------------------------------------------------------


def clipping(tmp_path: Path, where: str) -> Record:
    def train() -> None:
        model, other = Two(), Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        spent = model.parameters()
        list(spent)
        for _ in range(4):
            loss = model(torch.randn(5, 4)).square().mean()
            optimizer.zero_grad()
            if where == "before":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            loss.backward()
            if where == "right":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            elif where == "other":
                nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            elif where == "parts":
                for part in (model.body, model.norm, model.head):
                    nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            optimizer.step()
            if where == "after":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return watched(tmp_path, train, ClipOrder())


@pytest.mark.parametrize(
    ("where", "in_time", "coverage"),
    [
        ("right", 1, 1.0),
        ("before", 0, 0.0),
        ("after", 0, 0.0),
        ("other", 1, 0.0),
        ("parts", 3, 1.0),
    ],
)
def test_where_the_clip_call_stands(tmp_path, where: str, in_time: int, coverage: float) -> None:
    record = clipping(tmp_path, where)
    assert record["clip.in_time"].last == in_time
    assert record["clip.coverage"].last == coverage


def by_hand(tmp_path: Path, where: str, how: str) -> Record:
    """No optimizer of torch: the script updates its weights itself."""

    def update(model: nn.Module) -> None:
        if how == "data":
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
            return
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    def train() -> None:
        model, other = Two(), Two()
        spent = model.parameters()
        list(spent)
        for number in range(12):
            model.zero_grad()
            loss = model(torch.randn(5, 4)).square().mean()
            if where == "before":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            loss.backward()
            if where == "accumulated" and number % 2:
                continue
            if where in ("right", "accumulated"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            elif where == "other":
                nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            elif where == "spent":
                nn.utils.clip_grad_norm_(spent, 0.1)
            elif where == "parts":
                for part in (model.body, model.norm, model.head):
                    nn.utils.clip_grad_norm_(part.parameters(), 0.1)
            update(model)
            if where == "after":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return watched(tmp_path, train, ClipOrder(), Clipping())


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
@pytest.mark.parametrize("how", ["data", "no_grad"])
@pytest.mark.parametrize(
    ("where", "acts"),
    [
        ("right", True),
        ("parts", True),
        ("accumulated", True),
        ("before", False),
        ("after", False),
        ("other", False),
        ("spent", False),
    ],
)
def test_an_update_by_hand_is_a_step(tmp_path, where: str, acts: bool, how: str) -> None:
    found = clip_ineffective(by_hand(tmp_path, where, how))
    assert isinstance(found, NotJudged if where == "accumulated" else Clear if acts else Finding)


# -- gradients of earlier steps --------------------------------------------------------------------


@pytest.mark.parametrize("cleared", ["after the cache is filled", "at first", "never", "in part"])
@pytest.mark.parametrize("given", ["product", "backward"])
def test_a_gradient_cache_may_clear_late(tmp_path, cleared: str, given: str) -> None:
    """Answers without a graph, a loss of all of them, its gradients handed to a second pass."""

    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            if cleared == "at first":
                optimizer.zero_grad()
            x = torch.randn(6, 4)
            with torch.no_grad():
                answers = model(x)
            answers.requires_grad_()
            (answers @ answers.T).logsumexp(-1).mean().backward()
            if cleared == "after the cache is filled":
                optimizer.zero_grad()
            elif cleared == "in part":
                model.head.zero_grad()
            for part, wanted in zip(x.split(2), answers.grad.split(2)):
                if given == "backward":
                    model(part).backward(wanted)
                else:
                    (model(part) * wanted).sum().backward()
            optimizer.step()

    found = missing_zero_grad(watched(tmp_path, train, Leftover()))
    assert isinstance(found, Finding if cleared in ("never", "in part") else Clear)


@pytest.mark.parametrize("handed_on", [True, False])
def test_an_optimizer_inside_another_one_is_cleared_with_it(tmp_path, handed_on: bool) -> None:
    class Both(torch.optim.SGD):
        """Matrices by itself, what is left over by an optimizer of its own."""

        def __init__(self, matrices, others) -> None:
            super().__init__(matrices, lr=0.1)
            self.inner = torch.optim.AdamW(others)

        def step(self, closure=None):
            super().step()
            self.inner.step()

        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            if handed_on:
                self.inner.zero_grad(set_to_none)

    def train() -> None:
        model = Two()
        parts = [[p for p in model.parameters() if (p.ndim > 1) is flat] for flat in (True, False)]
        optimizer = Both(*parts)
        for _ in range(30):
            step(model, optimizer)

    found = missing_zero_grad(watched(tmp_path, train, Leftover()))
    assert isinstance(found, Clear if handed_on else Finding)


def test_a_learned_temperature_has_gradients_of_its_own(tmp_path) -> None:
    """Its optimizer is asked about it alone, though the networks' gradients are cleared later (SAC)."""

    def train() -> None:
        model, temperature = Two(), torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.Adam(model.parameters())
        tuning = torch.optim.Adam([temperature])
        x = torch.randn(4, next(model.parameters()).shape[-1])
        for _ in range(30):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            tuning.zero_grad()
            (temperature.exp() * model(x).detach().mean()).sum().backward()
            tuning.step()

    assert isinstance(missing_zero_grad(watched(tmp_path, train, Leftover())), Clear)


def test_gradients_of_the_model_before_are_not_those_of_a_resumed_one(tmp_path) -> None:
    """It is built anew, and the first step that is heard of it begins behind its forward pass."""
    probe = Leftover()
    old, new = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    probe.names = Names(torch.nn.ModuleList([old, new]))
    before, after = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (old, new))
    x = torch.randn(4, 3)

    def heard(
        step: int, model: nn.Module, optimizer: torch.optim.Optimizer, *, whole: bool = True
    ) -> None:
        model.zero_grad()
        if whole:
            probe.on(ForwardBegin(model, (x,), {}, wants_grad=True, training=True), due=True)
        loss = model(x).square().mean()
        if whole:
            probe.on(BackwardBegin([loss], True, 1.0), due=True)
        loss.backward()
        optimizer.step()
        probe.on(StepEnd(optimizer, step, 0.0), due=True)
        probe.close_step(step, writer, due=True)

    writer = RecordWriter(tmp_path, rank=0)
    heard(0, old, before)
    heard(1, old, before)
    heard(2, new, after, whole=False)
    for step in (3, 4, 5):
        heard(step, new, after)
    probe.finish(writer)
    writer.close()
    assert old.weight.grad is not None
    assert [norm for _, norm in open_record(tmp_path)["grad.leftover_norm"]] == [0.0] * 5


# -- update and moments ----------------------------------------------------------------------------


def test_update_norms_are_those_of_the_step(tmp_path) -> None:
    expected = {}

    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = [p.detach().clone() for p in model.parameters()]
        step(model, optimizer)
        change = [p.detach() - b for p, b in zip(model.parameters(), before)]
        expected["update"] = torch.cat([c.flatten() for c in change]).norm().item()
        expected["weight"] = torch.cat([b.flatten() for b in before]).norm().item()

    record = watched(tmp_path, train, Update())
    assert record["update.norm"].first == pytest.approx(expected["update"], rel=1e-5)
    assert record["param.norm"].first == pytest.approx(expected["weight"], rel=1e-5)
    assert set(record.layers("update.rms").layers) == {n for n, _ in Two().named_parameters()}


def test_the_gradient_that_the_step_finds(tmp_path) -> None:
    def cleared(clear: bool) -> Record:
        def train() -> None:
            model = Two()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(torch.ones(2, 4)).sum().backward()
            if clear:
                optimizer.zero_grad()
            optimizer.step()

        return watched(tmp_path / str(clear), train, Update())

    assert cleared(False)["grad.norm_at_step"].first > 0
    assert cleared(True)["grad.norm_at_step"].first == 0


def test_a_closure_makes_its_gradient_inside_of_the_step(tmp_path) -> None:
    def train() -> None:
        model = Two()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    assert watched(tmp_path, train, Update())["grad.norm_at_step"].first > 0


def measured(optimizer, p) -> dict[str, float]:
    group = optimizer.param_groups[0]
    apart = decouples(optimizer, group)
    row = moments(p, p.grad, group, optimizer.state[p], decoupled=apart)
    return dict(zip(MEASURED, row.tolist()))


def test_moments_of_adam_and_how_decay_stands_beside_them() -> None:
    p = nn.Parameter(torch.full((10,), 2.0))
    p.grad = torch.full((10,), 0.1)
    adam = torch.optim.Adam([p], lr=1e-3, weight_decay=0.5)
    adam.step()
    coupled = measured(adam, p)
    # The decay term 0.5 * 2 joins a gradient of 0.1: it is ten times as strong.
    assert coupled["pull"] / coupled["push"] == pytest.approx(10.0, rel=1e-2)
    assert coupled["step_rms"] == pytest.approx(1.0, rel=1e-3)
    assert coupled["snr"] == pytest.approx(1.0, rel=1e-3)
    assert coupled["under_eps"] == 0.0
    adamw = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1)
    adamw.step()
    apart = measured(adamw, p)
    # The decay 0.1 * 2 stands beside a step of 1.
    assert apart["pull"] / apart["push"] == pytest.approx(0.2, rel=1e-2)


@pytest.mark.parametrize(
    ("dtype", "lost"), [(torch.float32, 0.0), (torch.bfloat16, 0.0), (torch.float16, 0.6)]
)
def test_squares_that_are_too_small_for_their_numbers_are_lost(
    dtype: torch.dtype, lost: float
) -> None:
    gradient = torch.tensor([1e-2, -1e-5, 0.0, 0.0, 1e-18, 2e-2, 1e-6, 3e-6])
    second = (0.05 * gradient.square()).to(dtype)
    weight = torch.ones(8)
    state = {"momentum": 0.1 * gradient, "squares": second}
    for group in ({"lr": 1e-3}, {"lr": 1e-3, "betas": (0.9, 0.95)}):
        row = moments(weight, gradient, group, state, decoupled=True)
        # Of five entries with a gradient that float32 can square, two are left in float16.
        assert dict(zip(MEASURED, row.tolist()))["lost"] == pytest.approx(lost)
    empty = {"momentum": gradient, "spare": torch.zeros(8)}
    row = moments(weight, gradient, {"lr": 1e-3}, empty, decoupled=True)
    assert math.isnan(dict(zip(MEASURED, row.tolist()))["lost"])


def test_an_eps_above_the_denominator_is_seen(tmp_path) -> None:
    def train() -> None:
        model = Two()
        optimizer = torch.optim.Adam(model.parameters(), eps=10.0, weight_decay=0.1)
        for _ in range(2):
            step(model, optimizer)

    record = watched(tmp_path, train, OptimizerState())
    assert record.layers("adam.under_eps").row()["body.weight"] == 1.0
    assert record["decay.ratio"].first > 0


def test_moments_of_an_optimizer_of_ones_own_are_found_by_what_they_are() -> None:
    weight = torch.randn(6, 6)
    m, v = torch.randn(6, 6), torch.rand(6, 6)
    group = {"betas": (0.9, 0.999), "eps": 0.1}
    named = moments(weight, None, group, {"exp_avg": m, "exp_avg_sq": v, "step": 3}, decoupled=True)
    own = moments(weight, None, group, {"second": v, "first": m, "t": 3}, decoupled=True)
    assert torch.equal(named[:5], own[:5])
    other = moments(weight, None, group, {"a": m, "b": -m, "t": 3}, decoupled=True)
    assert other[:5].isnan().all(), "neither is a mean of squares"


@pytest.mark.parametrize("never_cleared", [True, False])
def test_a_clean_optimizer_does_not_stand_for_another(tmp_path, never_cleared: bool) -> None:
    """That nothing lies there is seen at every step, how much lies there now and then."""

    def train() -> None:
        model = Two()
        halves = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model.children()]
        for _ in range(12):
            loss = model(torch.randn(4, next(model.parameters()).shape[-1])).square().mean()
            for half in halves[never_cleared:]:
                half.zero_grad()
            loss.backward()
            for half in halves:
                half.step()

    record = watched(tmp_path, train, Leftover())
    norms = [norm for step, norm in record["grad.leftover_norm"] if step > 0]
    assert norms
    assert all((norm > 0) == never_cleared for norm in norms)
    assert isinstance(missing_zero_grad(record), Finding if never_cleared else Clear)
