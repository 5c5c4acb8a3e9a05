"""How closely steps are followed: everything at first, then as much as listening may cost."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch._dynamo.utils
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from traindoctor.capture.attention import (
    FEWEST_FIRST,
    FIRST_STEPS,
    LONGEST,
    LONGEST_LATER,
    LONGEST_SILENCE,
    SHARE,
    STAGE_STEPS,
    Attention,
)
from traindoctor.capture.hub import hub
from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Clear, Finding
from traindoctor.checks.optimizer.optimizer_holds_stale_params import optimizer_holds_stale_params
from traindoctor.diagnosis.verdict import ENOUGH_STEPS
from traindoctor.record import open_record


def followed(
    budget: float, step: float, pulse: float, extra: float, steps: int = 2000, *, early: bool = True
) -> tuple[Attention, float]:
    """(the attention after so many steps, what listening cost in the later half over their time)"""
    attention, spent, ran = Attention(), 0.0, 0.0
    for number in range(steps):
        cost = 0.0
        if attention.heard(number) or attention.attentive(number):
            cost = pulse + (extra if attention.attentive(number) else 0.0)
            attention.end_step(number, cost, budget * step, early=early)
        if number >= steps // 2:
            spent, ran = spent + cost, ran + step
    return attention, spent / ran


def test_the_first_steps_are_all_attentive() -> None:
    attention = Attention()
    for step in range(FIRST_STEPS):
        assert attention.attentive(step)
        attention.end_step(step, 1.0, 0.0)
    assert attention.stride == LONGEST


def test_where_all_is_spent_the_beginning_ends() -> None:
    attention = Attention()
    for step in range(10):
        attention.end_step(step, 0.2, 2e-4)
    assert attention.reserve(10) == pytest.approx(0.2 * (FIRST_STEPS - 10))
    attention.end_beginning(9)
    attention.end_step(10, 0.0, 2e-4)
    assert not attention.attentive(11) or attention.stride == 1
    assert attention.reserve(11) == 0.0


def test_long_steps_are_all_attentive() -> None:
    attention, _ = followed(0.02, step=1.0, pulse=1e-4, extra=3e-3)
    assert (attention.pulse, attention.stride) == (1, 1)


@given(
    step=st.floats(0.01, 2.0), pulse=st.floats(2e-5, 4e-4), extra=st.floats(2e-4, 5e-3),
    budget=st.sampled_from([0.01, 0.02, 0.05]), early=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_listening_keeps_to_its_share(
    step: float, pulse: float, extra: float, budget: float, early: bool
) -> None:
    attention, share = followed(budget, step, pulse, extra, early=early)
    silence = LONGEST_SILENCE if early else LONGEST_LATER
    least = pulse / silence + extra / LONGEST  # what is left of it at the longest distances
    assert share <= max(SHARE * budget, least / step) * 1.1
    assert attention.stride % attention.pulse == 0


def test_all_ranks_share_steps_whatever_their_speed() -> None:
    slow, fast = (followed(0.02, step, 1e-4, 3e-3)[0] for step in (0.5, 0.01))
    shared = [s for s in range(1000, 1600) if slow.attentive(s) and fast.attentive(s)]
    assert shared == [s for s in range(1000, 1600) if fast.attentive(s)]


def test_steps_that_pass_in_silence_are_counted(tmp_path: Path) -> None:
    """Only some are heard, and evaluations always; the numbers of steps and passes are right."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = Watch(tmp_path, budget=1.0, replay=False)
    watch.attention.attentive = lambda step: step % 32 == 0  # type: ignore[method-assign]
    watch.attention._decide = lambda allowed, silence: None  # type: ignore[method-assign]
    watch.attention.pulse = watch.attention.stride = 8
    watch.attach()
    slept = 0
    try:
        for step in range(203):
            slept += hub.asleep > 0
            optimizer.zero_grad()
            nn.functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
            optimizer.step()
            if step == 100:
                with torch.no_grad():
                    nn.functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4))
    finally:
        watch.close(0)
    record = open_record(tmp_path)
    assert slept > 100
    assert record.fact("run.steps") == 203
    assert record.fact("run.backwards") == 203
    assert all(step % 8 == 0 for step in record["loss.root"].steps if step >= FIRST_STEPS)
    assert record["time.step"].steps[-1] == 200


def test_in_silence_taps_only_hand_on(tmp_path: Path) -> None:
    """Their code is exchanged, never the function: whoever holds it, and compiled code, see no difference."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = Watch(tmp_path, budget=1.0, replay=False, probes=[])
    watch.attach()
    events: list[str] = []
    try:
        call, read = nn.Module.__call__, torch.Tensor.item
        awake = call.__code__, read.__code__  # type: ignore[attr-defined]
        frames = count_frames()
        compiled = torch.compile(model, backend="eager")
        compiled(torch.ones(2, 4))
        made = count_frames()
        hub.sleep(3, optimizer)
        assert (nn.Module.__call__, torch.Tensor.item) == (call, read)
        assert call.__code__ is not awake[0]  # type: ignore[attr-defined]
        hub.sink = lambda event: events.append(type(event).__name__)
        compiled(torch.ones(2, 4))
        loss = model(torch.ones(2, 4)).sum().detach()
        assert loss.item() == float(loss)
        assert events == []
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert events == ["ForwardBegin", "ForwardEnd"]
        hub.wake()
        assert (call.__code__, read.__code__) == awake  # type: ignore[attr-defined]
        compiled(torch.ones(2, 4))
        assert count_frames() == made > frames
    finally:
        watch.close(0)
    assert hub.bodies == []


def count_frames() -> int:
    """Frames that torch.compile has traced."""
    return torch._dynamo.utils.counters["frames"]["total"]


def test_another_optimizer_is_heard_at_once(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    watch = Watch(tmp_path, budget=1.0, replay=False, probes=[])
    watch.attention._decide = lambda allowed, silence: None  # type: ignore[method-assign]
    watch.attach()
    try:
        first = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(FIRST_STEPS):
            model(torch.ones(2, 4)).sum().backward()
            first.step()
        hub.sleep(16, first)
        second = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        second.step()
        assert hub.asleep == 0
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            second.step()
        assert watch.step > FIRST_STEPS
    finally:
        watch.close(0)


def test_optimizers_that_take_turns_are_all_heard(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    first, second = (torch.optim.SGD(m.parameters(), 0.01) for m in (one, two))
    watch = Watch(tmp_path, budget=1.0, replay=False)
    watch.attention._decide = lambda allowed, silence: None  # type: ignore[method-assign]
    watch.attention.pulse = watch.attention.stride = 8
    watch.attach()
    try:
        for _ in range(100):
            for model, optimizer in ((one, first), (two, second)):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
    finally:
        watch.close(0)
    record = open_record(tmp_path)
    assert record.fact("run.steps") == 200
    assert record.fact("run.backwards") == 200


def test_waking_waits_until_we_may_look(tmp_path: Path) -> None:
    """While the script profiles itself nothing is heard; the steps are counted all the same."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    watch = Watch(tmp_path, budget=1.0, replay=False)
    watch.attention._decide = lambda allowed, silence: None  # type: ignore[method-assign]
    watch.attention.pulse = watch.attention.stride = 8
    watch.attach()

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()

    try:
        train(100)
        assert hub.asleep
        with torch.profiler.profile():
            train(20)
        train(21)
    finally:
        watch.close(0)
    assert open_record(tmp_path).fact("run.steps") == 141


def test_a_new_optimizer_begins_a_stage_that_is_followed_closely() -> None:
    attention = Attention()
    for step in range(FIRST_STEPS):
        attention.end_step(step, 1.0, 0.001)
    attention.begin_stage(80)
    assert all(attention.attentive(step) for step in range(80, 80 + STAGE_STEPS))
    assert not attention.attentive(80 + STAGE_STEPS)


def test_optimizers_made_one_after_the_other_are_followed_at_doubling_distances() -> None:
    attention = Attention()
    for step in range(FIRST_STEPS):
        attention.end_step(step, 1.0, 0.001)
    followed_closely = 0
    for step in range(FIRST_STEPS, 10_000):
        attention.begin_stage(step)
        followed_closely += attention.attentive(step)
    assert followed_closely < 8 * STAGE_STEPS + 10_000 // LONGEST


def test_what_a_later_optimizer_leaves_out_is_seen(tmp_path: Path) -> None:
    """The head is exchanged after the second optimizer was made: the new one is in none."""
    watch = Watch(tmp_path / "run", replay=False)
    watch.attach()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    try:
        for stage in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            if stage:
                model[1] = nn.Linear(4, 2)
            for _ in range(70):
                optimizer.zero_grad()
                model(torch.randn(3, 4)).square().mean().backward()
                optimizer.step()
    finally:
        watch.close()
    coverage = open_record(tmp_path / "run").fact("optimizer.coverage")
    assert [one["name"] for one in coverage["missing"]] == ["1.weight", "1.bias"]
    assert all(one["looks_with_gradient"] >= 5 for one in coverage["missing"])


@pytest.mark.parametrize(("kept", "outcome"), [(True, Finding), (False, Clear)])
def test_a_model_that_replaces_the_one_in_the_optimizer_is_seen(
    tmp_path: Path, kept: bool, outcome: type
) -> None:
    """The second stage trains a copy of the model; the optimizer is kept, or made anew."""
    watch = Watch(tmp_path / "run", replay=False)
    watch.attach()
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for stage in range(2):
            if stage:
                model = copy.deepcopy(model)
                optimizer = optimizer if kept else torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(70):
                optimizer.zero_grad()
                model(torch.randn(3, 4)).square().mean().backward()
                optimizer.step()
    finally:
        watch.close()
    found = optimizer_holds_stale_params(open_record(tmp_path / "run"))
    assert isinstance(found, outcome)
    if kept:
        # The stage is noticed at the first step that is heard in it.
        assert 70 <= found.since_step < 70 + LONGEST


def test_an_optimizer_without_gradients_beside_one_that_has_them_begins_no_stage(
    tmp_path: Path,
) -> None:
    """Two players in turn, both optimizers step every time: what was seen of the models is kept."""
    watch = Watch(tmp_path / "run", replay=False)
    watch.attach()
    players = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [torch.optim.SGD(player.parameters(), lr=0.01) for player in players]
    try:
        for step in range(140):
            for optimizer in optimizers:
                optimizer.zero_grad()
            players[step % 2](torch.randn(3, 4)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    finally:
        watch.close()
    coverage = open_record(tmp_path / "run").fact("optimizer.coverage")
    assert coverage["since"] == 0
    assert coverage["looks"] >= 10


def test_so_many_steps_are_followed_as_a_verdict_needs() -> None:
    assert FEWEST_FIRST >= ENOUGH_STEPS
