"""torch's own optimizers: a fresh object of torch's predicts the script's step, whatever the settings."""

from __future__ import annotations

import inspect
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traindoctor.errors import ReplayError
from traindoctor.experiment.rules import rule_of
from traindoctor.experiment.settings import betas_of, group_settings

# Largest error of a right prediction, relative to the update (the weights' own rounding aside).
ERROR = 5e-5

rates = st.floats(min_value=1e-4, max_value=0.5)
betas = st.tuples(st.floats(0.0, 0.95), st.floats(0.5, 0.9999))
decays = st.sampled_from([0.0, 0.01, 0.3])
switch = st.booleans()
path = st.sampled_from([{}, {"foreach": True}, {"foreach": False}])
fast = st.sampled_from([{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
adam = {"lr": rates, "betas": betas, "weight_decay": decays, "maximize": switch}
KINDS = {
    "SGD": (
        fast,
        {
            "lr": rates,
            "momentum": st.sampled_from([0.0, 0.9]),
            "dampening": st.sampled_from([0.0, 0.2]),
            "weight_decay": decays,
            "maximize": switch,
        },
    ),
    "Adam": (fast, {**adam, "amsgrad": switch}),
    "AdamW": (fast, {**adam, "amsgrad": switch}),
    "NAdam": (path, {**adam, "decoupled_weight_decay": switch}),
    "RAdam": (path, {**adam, "decoupled_weight_decay": switch}),
    "Adamax": (path, adam),
    "Adagrad": (fast, {"lr": rates, "lr_decay": decays, "weight_decay": decays}),
    "Adadelta": (path, {"lr": rates, "rho": st.floats(0.1, 0.99), "maximize": switch}),
    "RMSprop": (
        path,
        {
            "lr": rates,
            "momentum": st.sampled_from([0.0, 0.5]),
            "centered": switch,
            "maximize": switch,
            "weight_decay": decays,
        },
    ),
    "ASGD": (path, {"lr": rates, "weight_decay": decays, "maximize": switch}),
    "Rprop": (path, {"lr": rates, "maximize": switch}),
    "Adafactor": (path, {"lr": rates, "weight_decay": decays, "maximize": switch}),
    "Muon": (st.just({}), {"lr": rates, "nesterov": switch, "weight_decay": decays}),
}


def parameters(device: str) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape, device=device)) for shape in ((6, 4), (4, 5))]


def give_gradients(ps) -> None:
    for p in ps:
        p.grad = torch.randn_like(p)


def trained(make, steps: int = 3, device: str = "cpu"):
    ps = parameters(device)
    optimizer = make(ps)
    for _ in range(steps):
        give_gradients(ps)
        optimizer.step()
    give_gradients(ps)
    return ps, optimizer


def errors(optimizer, ps) -> list[float]:
    """Of the next step: real against predicted, over the predicted update plus the rounding of the weights.

    They are rounded twice where they decay by themselves: after the decay and after the update.
    """
    before = [p.detach().double() for p in ps]
    expected = [[p.clone() for p in before]]
    stepper = rule_of(optimizer).over(expected, dtype=torch.float64)
    stepper.step([[p.grad for p in ps]])
    optimizer.step()
    return [
        float(
            (p.detach().double() - mine).norm()
            / ((mine - old).norm() + 2 * 2**-24 / ERROR * old.norm())
        )
        for p, mine, old in zip(ps, expected[0], before)
    ]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_step_is_predicted_under_any_settings(name: str, data) -> None:
    which, options = KINDS[name]
    chosen = {**data.draw(which), **data.draw(st.fixed_dictionaries(options))}
    ps, optimizer = trained(lambda p: getattr(torch.optim, name)(p, **chosen))
    assert max(errors(optimizer, ps)) <= ERROR


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["plain", "foreach", "fused", "capturable"])
@pytest.mark.parametrize("name", KINDS)
def test_on_a_gpu_whatever_the_path(name: str, way: str) -> None:
    kind = getattr(torch.optim, name)
    if way != "plain" and way not in inspect.signature(kind).parameters:
        return
    chosen = {} if way == "plain" else {way: True}
    try:
        ps, optimizer = trained(lambda p: kind(p, lr=0.01, **chosen), device="cuda")
    except RuntimeError as error:  # torch 2.11 has no fused Adagrad on a GPU
        pytest.skip(f"torch refuses: {error}")
    assert max(errors(optimizer, ps)) <= ERROR


def test_it_is_adamw_as_the_paper_has_it() -> None:
    """Against the formula in float64, three steps from nothing."""
    rate, first, second, eps, decay = 0.01, 0.9, 0.99, 1e-8, 0.1
    ps, optimizer = trained(
        lambda p: torch.optim.AdamW(p, lr=rate, betas=(first, second), weight_decay=decay), steps=0
    )
    tensors = [[p.detach().double() for p in ps]]
    stepper = rule_of(optimizer).over(tensors, dtype=torch.float64)
    weight = tensors[0][0].clone()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for t in range(1, 4):
        give_gradients(ps)
        gradient = ps[0].grad.double()
        stepper.step([[p.grad for p in ps]])
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        step = mean / (1 - first**t) / ((square / (1 - second**t)).sqrt() + eps)
        weight = weight * (1 - rate * decay) - rate * step
        torch.testing.assert_close(tensors[0][0], weight, rtol=1e-12, atol=1e-12)


def test_nothing_of_the_scripts_is_in_a_rule() -> None:
    ps, optimizer = trained(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)))
    optimizer.model = nn.Linear(2, 2)
    optimizer.param_groups[0]["owner"] = nn.Linear(2, 2)
    optimizer.state[ps[0]]["note"] = object()
    rule = rule_of(optimizer)
    assert rule.attributes is None
    assert {type(v) for v in rule.settings[0].values()} <= {float, int, bool, tuple, type(None)}
    kept = [value for states in rule.state for state in states for value in state.values()]
    assert {type(v) for v in kept} == {torch.Tensor}
    own = {
        t.data_ptr()
        for state in optimizer.state.values()
        for t in state.values()
        if hasattr(t, "data_ptr")
    }
    assert not own & {t.data_ptr() for t in kept}
    assert max(errors(optimizer, ps)) <= ERROR


def test_stepping_leaves_the_original_alone() -> None:
    ps, optimizer = trained(lambda p: torch.optim.Adam(p, lr=0.01))
    kept = [(p.detach().clone(), p.grad.clone()) for p in ps]
    state = {i: {k: v.clone() for k, v in optimizer.state[p].items()} for i, p in enumerate(ps)}
    stepper = rule_of(optimizer).over([[p.detach().clone() for p in ps]])
    stepper.step([[p.grad for p in ps]])
    stepper.groups[0]["lr"] = 99.0
    assert optimizer.param_groups[0]["lr"] == 0.01
    for i, (p, (weight, gradient)) in enumerate(zip(ps, kept)):
        assert torch.equal(p, weight)
        assert torch.equal(p.grad, gradient)
        assert all(torch.equal(optimizer.state[p][k], v) for k, v in state[i].items())


def test_schedulers_count_nothing_and_hide_nothing() -> None:
    ps, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), steps=1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    optimizer._opt_called = False
    stepper = rule_of(optimizer).over([[p.detach().clone() for p in ps]])
    stepper.step([[p.grad for p in ps]])
    assert (scheduler.last_epoch, optimizer._opt_called) == (0, False)
    assert max(errors(optimizer, ps)) <= ERROR


def test_hooks_of_the_script_are_not_called_and_make_a_step_unpredictable() -> None:
    _, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1), steps=1)
    fired = []
    for register in (register_optimizer_step_pre_hook, optimizer.register_step_post_hook):
        handle = register(lambda *_: fired.append(1))
        try:
            with pytest.raises(ReplayError, match="hooks"):
                rule_of(optimizer)
        finally:
            handle.remove()
    rule_of(optimizer)
    assert fired == []


def test_a_step_that_a_script_puts_into_torchs_class_is_no_longer_torchs(monkeypatch) -> None:
    class Adam(torch.optim.Adam):
        """Only called as torch's is."""

        def step(self, closure=None):
            print("mine")

    ps, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))
    rule_of(optimizer)
    with pytest.raises(ReplayError, match="print"):
        rule_of(Adam(ps))
    original = torch.optim.SGD.step
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self, closure=None: original(self, closure))
    with pytest.raises(ReplayError, match=r"SGD\.step was replaced"):
        rule_of(optimizer)
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules["torch.optim.sgd"], "sgd", lambda *a, **k: None)
    with pytest.raises(ReplayError, match=r"torch\.optim\.sgd\.sgd was replaced"):
        rule_of(optimizer)
    monkeypatch.undo()
    optimizer.step = lambda closure=None: None
    with pytest.raises(ReplayError, match="replaced on the object"):
        rule_of(optimizer)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_torchs_rules_that_need_more_than_gradients_are_refused(kind) -> None:
    with pytest.raises(ReplayError, match=f"not possible for this optimizer: {kind.__name__}"):
        rule_of(kind([nn.Parameter(torch.ones(2))]))


def test_a_setting_that_is_not_plain_is_refused() -> None:
    _, optimizer = trained(lambda p: torch.optim.SGD(p, lr=0.1))

    class Rate(float):
        pass

    optimizer.param_groups[0]["lr"] = Rate(0.2)
    with pytest.raises(ReplayError, match="the setting lr of SGD is a Rate"):
        rule_of(optimizer)


def test_forgetting_is_a_first_step() -> None:
    ps, optimizer = trained(lambda p: torch.optim.Adam(p, lr=0.01))
    tensors = [[p.detach().clone() for p in ps]]
    stepper = rule_of(optimizer).over(tensors)
    stepper.forget()
    stepper.step([[torch.ones_like(p) for p in ps]])
    # Adam's first step has the length of the rate, whatever the gradient.
    assert (tensors[0][0] - ps[0]).abs().mean().item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("name", ["adam", "rmsprop", "momentum"])
def test_a_rescaled_state_is_that_of_longer_gradients(name: str) -> None:
    """Steps of Adam and RMSprop are the same then, momentum's are longer by the factor."""
    make = {
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, eps=0.0),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=0.0),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    }[name]
    ps, optimizer = trained(make)
    moved = []
    for scale in (1.0, 10.0):
        tensors = [[p.detach().double() for p in ps]]
        stepper = rule_of(optimizer).over(tensors, dtype=torch.float64)
        stepper.rescale(scale)
        stepper.step([[scale * p.grad.double() for p in ps]])
        moved.append([t - p.detach().double() for t, p in zip(tensors[0], ps)])
    factor = 10.0 if name == "momentum" else 1.0
    for usual, longer in zip(*moved):
        torch.testing.assert_close(longer, factor * usual)


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ({"betas": (0.9, 0.99)}, (0.9, 0.99)),
        ({"beta1": 0.8, "beta2": 0.95, "eps": 0.1}, (0.8, 0.95)),
        ({"b1": 0.8, "b2": 0.95}, (0.8, 0.95)),
        ({"momentum": 0.9}, None),
        ({"betas": "auto"}, None),
    ],
)
def test_adams_betas_are_known_by_any_of_their_names(group: dict, found) -> None:
    assert betas_of(group) == found


def test_settings_are_plain_values() -> None:
    given = {
        "params": [1],
        "lr": torch.tensor(0.5),
        "betas": (0.9, math.pi),
        "owner": nn.Linear(1, 1),
    }
    assert group_settings(given) == {"lr": 0.5, "betas": (0.9, math.pi)}
