"""Predicted against real change, for optimizers and dtypes; the lost update and the vanished rate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook

from odd_optimizers import Langevin, Lion, Lookahead
from traindoctor.errors import ReplayError
from traindoctor.events import StepBegin, StepEnd
from traindoctor.ground.torch_code import OURS
from traindoctor.probes.step_accounting import (
    BYTES_PER_ELEMENT,
    Account,
    Capture,
    StepAccounting,
    half_spacing,
)
from traindoctor.record import RecordWriter, open_record


def one_step(optimizer: torch.optim.Optimizer, parameters) -> tuple[Account, list[Account]]:
    generator = torch.Generator().manual_seed(1)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
    capture = Capture(optimizer)
    optimizer.step()
    return capture.accounts({})


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 8), (8,), (1,)]
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_a_right_step_is_predicted_to_rounding(kind: str) -> None:
    ps = parameters()
    whole, each = one_step(getattr(torch.optim, kind)(ps, lr=1e-2), ps)
    assert whole.error < 1e-4
    assert whole.ulp_allowance < 1.5
    assert whole.moved == pytest.approx(whole.should, abs=0.02)
    assert len(each) == 3


def test_updates_under_half_a_spacing_are_lost_and_rounding_explains_it() -> None:
    ps = parameters(torch.bfloat16)
    whole, _ = one_step(torch.optim.AdamW(ps, lr=1e-4), ps)
    assert whole.error > 0.5
    assert whole.moved < 0.5 * whole.should
    assert whole.ulp_allowance < 1.0
    assert whole.relative > 1e-7
    assert whole.dtype == "bfloat16"


def test_a_vanished_rate_has_the_same_signature_but_for_the_relative_update() -> None:
    ps = parameters()
    whole, _ = one_step(torch.optim.Adam(ps, lr=1e-15), ps)
    assert whole.moved == 0.0
    assert whole.should == 1.0
    assert whole.relative < 1e-7


def test_a_step_that_is_not_the_rules_is_no_rounding() -> None:
    ps = parameters()
    optimizer = torch.optim.SGD(ps, lr=0.1)
    for p in ps:
        p.grad = torch.ones_like(p)
    capture = Capture(optimizer)
    with torch.no_grad():
        for p in ps:
            p.sub_(0.2)
    whole, _ = capture.accounts({})
    assert whole.error == pytest.approx(1.0, rel=1e-3)
    assert whole.ulp_allowance > 1000


@settings(max_examples=60, deadline=None)
@given(
    st.floats(min_value=2.0**-100, max_value=1e30),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_half_spacing_is_half_the_distance_to_the_next_number(value: float, dtype) -> None:
    number = torch.tensor([value]).to(dtype)
    following = torch.nextafter(number.float(), torch.tensor([torch.inf]))
    if dtype == torch.bfloat16:  # its numbers are every 65536th of float32's
        following = (number.float().view(torch.int32) + 0x10000).view(torch.float32)
    expected = (following.double() - number.double()) / 2
    assert half_spacing(number.double(), dtype).item() == pytest.approx(expected.item(), rel=1e-9)


def test_the_probe_writes_an_exam_at_its_early_step(tmp_path) -> None:
    ps = parameters()
    optimizer = torch.optim.AdamW(ps, lr=1e-3)
    probe, record = StepAccounting(), RecordWriter(tmp_path)
    for step in range(3):
        for p in ps:
            p.grad = torch.ones_like(p)
        probe.on(StepBegin(optimizer, step), due=False)
        optimizer.step()
        probe.on(StepEnd(optimizer, step, 0.0), due=False)
        probe.close_step(step, record, due=False)
    record.close()
    results = open_record(tmp_path).exams("step_accounting")
    assert [r.step for r in results] == [1]
    assert results[0].values["error"] < 1e-3
    assert results[0].values["optimizer"] == "AdamW"
    assert open_record(tmp_path).layers("update.lost").values.max() < 0.1


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Lookahead, Langevin])
def test_an_optimizer_without_a_rule_is_refused_once_and_never_stepped(tmp_path, kind) -> None:
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = kind([p])
    probe, record = StepAccounting(), RecordWriter(tmp_path)
    for step in (1, 16):
        p.grad = torch.ones(2)
        probe.on(StepBegin(optimizer, step), due=True)
        probe.on(StepEnd(optimizer, step, 0.0), due=True)
        probe.close_step(step, record, due=True)
    record.close()
    results = open_record(tmp_path).exams("step_accounting")
    assert [r.outcome for r in results] == ["refused"]
    assert results[0].reason.startswith("not possible for this optimizer: ")
    assert torch.equal(p, torch.ones(2))


def test_one_optimizer_without_a_rule_does_not_silence_the_other(tmp_path) -> None:
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    probe, record = StepAccounting(), RecordWriter(tmp_path)
    for step, optimizer in ((1, Langevin([p])), (16, torch.optim.SGD([q], lr=0.1))):
        p.grad = q.grad = torch.ones(2)
        probe.on(StepBegin(optimizer, step), due=True)
        optimizer.step()
        probe.on(StepEnd(optimizer, step, 0.0), due=True)
        probe.close_step(step, record, due=True)
    record.close()
    results = open_record(tmp_path).exams("step_accounting")
    assert [r.outcome for r in results] == ["refused", "done"]
    assert results[1].values["error"] < 1e-4


@pytest.mark.parametrize("finite", [True, False])
def test_a_scaler_that_unscales_inside_a_fused_step(tmp_path, finite: bool) -> None:
    """The step divides by the scale, and does nothing where a gradient is not finite."""
    ps = parameters()
    optimizer = torch.optim.Adam(ps, lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    probe, record = StepAccounting(), RecordWriter(tmp_path)
    begin = register_optimizer_step_pre_hook(lambda o, *_: probe.on(StepBegin(o, 1), due=True))
    # Named as ours: a hook of the script's would be a reason to refuse.
    for hook in _global_optimizer_pre_hooks.values():
        hook.__code__ = hook.__code__.replace(co_filename=OURS + "taps.py")
    try:
        sum(p.square().sum() for p in ps).mul(1024.0).backward()
        if not finite:
            ps[0].grad[0, 0] = torch.inf
        scaler.scale(torch.ones(()))
        before = [p.detach().clone() for p in ps]
        scaler.step(optimizer)
        probe.on(StepEnd(optimizer, 1, 0.0), due=True)
    finally:
        begin.remove()
    probe.close_step(1, record, due=True)
    record.close()
    results = open_record(tmp_path).exams("step_accounting")
    assert [r.values["error"] < 1e-4 for r in results] == ([True] if finite else [])
    assert all(torch.equal(p, old) for p, old in zip(ps, before)) is not finite


def test_copies_stay_within_the_memory_bound(monkeypatch) -> None:
    """A larger model is sampled by whole tensors; a rule that needs all of them is refused."""
    ps = [torch.nn.Parameter(torch.randn(1000)) for _ in range(10)]
    monkeypatch.setattr("traindoctor.ground.memory.memory.limit", 5 * 1000 * BYTES_PER_ELEMENT)
    monkeypatch.setattr("traindoctor.ground.memory.memory.holders", [])
    whole, each = one_step(torch.optim.Adam(ps, lr=1e-2), ps)
    assert 1 <= len(each) <= 5
    assert whole.error < 1e-4
    with pytest.raises(ReplayError, match="too much memory"):
        Capture(Lion(ps))
