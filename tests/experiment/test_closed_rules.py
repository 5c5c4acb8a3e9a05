"""Unknown optimizers: a proven copy takes the script's step and touches nothing; all others are refused with a reason."""

from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import odd_optimizers
from odd_optimizers import CLOSED, OPEN, Counting, Lion, Rule
from traindoctor.errors import ReplayError
from traindoctor.experiment.rules import rule_of


def trained(kind, steps: int = 3, **settings):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
    optimizer = kind(parameters, **settings)
    for _ in range(steps):
        give_gradients(parameters)
        optimizer.step()
    give_gradients(parameters)
    return parameters, optimizer


def give_gradients(parameters) -> None:
    for p in parameters:
        p.grad = torch.randn_like(p)


def frozen(value, seen=None):
    """Everything that can be reached from a value, bit for bit."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, Tensor):
        return (
            value.dtype,
            value._version,
            value.detach().numpy().tobytes(),
            frozen(value.grad, seen),
        )
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, dict):
        return [(frozen(k, seen), frozen(v, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [frozen(one, seen) for one in value]
    if isinstance(value, torch.optim.Optimizer):
        return frozen(vars(value), seen)
    return repr(value)


def world(optimizer):
    module = {k: v for k, v in vars(odd_optimizers).items() if not k.startswith("__")}
    classes = {c: dict(vars(c)) for c in type(optimizer).__mro__ if c is not object}
    return (
        frozen(optimizer),
        frozen(module),
        frozen([[k, v] for c in classes.values() for k, v in c.items()]),
        torch.get_rng_state().numpy().tobytes(),
        repr(random.getstate()),
        pickle.dumps(np.random.get_state()),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        sorted(vars(torch)),
        sorted(vars(Tensor)),
    )


def copies(parameters, dtype=None):
    return [[p.detach().to(dtype or p.dtype, copy=True) for p in parameters]]


@pytest.mark.parametrize("kind", CLOSED)
def test_a_proven_copy_takes_the_next_steps_of_the_script(kind) -> None:
    parameters, optimizer = trained(kind)
    tensors = copies(parameters)
    stepper = rule_of(optimizer).over(tensors)
    for _ in range(3):
        before = [p.detach().clone() for p in parameters]
        stepper.step([[p.grad.clone() for p in parameters]])
        optimizer.step()
        for ours, p, old in zip(tensors[0], parameters, before):
            torch.testing.assert_close(ours, p.detach(), rtol=0, atol=0)
            assert not torch.equal(p, old)
        give_gradients(parameters)


@pytest.mark.parametrize("kind", CLOSED)
def test_in_float64_it_predicts_the_update_within_rounding(kind) -> None:
    parameters, optimizer = trained(kind)
    tensors = copies(parameters, torch.float64)
    before = [p.detach().double() for p in parameters]
    rule_of(optimizer).over(tensors, dtype=torch.float64).step(
        [[p.grad.double() for p in parameters]]
    )
    optimizer.step()
    for ours, p, old in zip(tensors[0], parameters, before):
        real, predicted = p.detach().double() - old, ours - old
        rounding = 2**-24 * old.norm()  # half a spacing of the float32 weight
        assert (real - predicted).norm() <= 5e-5 * predicted.norm() + rounding


@pytest.mark.parametrize("kind", CLOSED)
def test_proving_and_stepping_leaves_the_world_as_it_was(kind) -> None:
    parameters, optimizer = trained(kind)
    before = world(optimizer)
    rule = rule_of(optimizer)
    for dtype in (None, torch.float64):
        rule.over(copies(parameters, dtype), dtype=dtype).step([[p.grad for p in parameters]])
    assert world(optimizer) == before


@pytest.mark.parametrize("kind", OPEN)
def test_a_step_that_reaches_outside_is_refused_and_never_called(kind) -> None:
    parameters, optimizer = trained(kind, steps=0)
    if "quantised" in OPEN[kind]:
        optimizer.step()
    before = world(optimizer)
    with pytest.raises(ReplayError, match="not possible for this optimizer: .*" + OPEN[kind]):
        rule_of(optimizer)
    assert world(optimizer) == before
    assert len(parameters) == 2


def test_a_copy_keeps_its_own_history() -> None:
    parameters, optimizer = trained(Counting)
    stepper = rule_of(optimizer).over(copies(parameters))
    stepper.step([[p.grad for p in parameters]])
    assert optimizer.history == [0, 1, 2]
    assert stepper.optimizer.history == [0, 1, 2, 3]
    assert float(stepper.optimizer.total) == 4
    with pytest.raises(ReplayError, match="before the first step"):
        stepper.forget()


def test_the_rule_is_that_of_its_moment() -> None:
    """Later steps of the script do not reach it."""
    parameters, optimizer = trained(Lion)
    rule, start, gradients = rule_of(optimizer), copies(parameters), [p.grad for p in parameters]
    expected = copy.deepcopy(start)
    rule.over(expected).step([gradients])
    optimizer.step()
    give_gradients(parameters)
    optimizer.step()
    again = copy.deepcopy(start)
    rule.over(again).step([gradients])
    assert all(torch.equal(a, b) for a, b in zip(again[0], expected[0]))


def test_a_name_that_changes_after_the_proof_is_seen(monkeypatch) -> None:
    parameters, optimizer = trained(odd_optimizers.OwnList)
    rule = rule_of(optimizer)
    monkeypatch.setattr(odd_optimizers, "halved", odd_optimizers.counted)
    monkeypatch.setattr(odd_optimizers, "CALLS", [0])
    with pytest.raises(ReplayError, match="CALLS"):
        rule.over(copies(parameters))
    assert odd_optimizers.CALLS == [0]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda o: o.register_step_pre_hook(lambda *_: None), "hooks"),
        (lambda o: o.register_step_post_hook(lambda *_: None), "hooks"),
        (lambda o: setattr(o, "step", lambda closure=None: None), "replaced on the object"),
        (lambda o: setattr(o, "grad_scale", torch.ones(())), "unscales"),
        (lambda o: o.param_groups[0].update(model=nn.Linear(2, 2)), "Linear in param_groups"),
        (lambda o: setattr(o, "callback", print), "builtin_function_or_method in callback"),
        (lambda o: setattr(o, "others", [nn.Parameter(torch.ones(2))]), "Parameter"),
    ],
)
def test_an_object_that_was_changed_is_refused(spoil, reason: str) -> None:
    _, optimizer = trained(Lion)
    rule_of(optimizer)
    spoil(optimizer)
    with pytest.raises(ReplayError, match=reason):
        rule_of(optimizer)


def test_half_weights_of_an_unknown_rule_are_refused() -> None:
    """A copy in float64 cannot tell whether the rule keeps what is rounded away."""
    parameters = [nn.Parameter(torch.randn(4, dtype=torch.bfloat16))]
    with pytest.raises(ReplayError, match="half precision"):
        rule_of(Lion(parameters))


def test_parameters_of_a_class_of_their_own_are_refused() -> None:
    class Loud(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            odd_optimizers.CALLS[0] += 1
            return super().__torch_function__(func, types, args, kwargs or {})

    parameter = torch.randn(3).as_subclass(Loud).requires_grad_()
    for kind in (Lion, torch.optim.SGD):
        optimizer = kind([parameter], lr=0.1)
        odd_optimizers.CALLS[0] = 0
        with pytest.raises(ReplayError, match="class Loud"):
            rule_of(optimizer)
        assert odd_optimizers.CALLS == [0]


def test_a_python_that_was_not_tested_is_refused(monkeypatch) -> None:
    _, optimizer = trained(Lion)
    monkeypatch.setattr("traindoctor.experiment.closed_code.VERSIONS", ((3, 8),))
    with pytest.raises(ReplayError, match="cannot be read under Python 3"):
        rule_of(optimizer)


def test_tensors_over_the_same_memory_are_refused() -> None:
    _, optimizer = trained(Rule)
    flat = torch.zeros(6)
    optimizer.parts = [flat[:3], flat[3:]]
    with pytest.raises(ReplayError, match="view"):
        rule_of(optimizer)
