"""The rule of updates that a script writes itself, against torch's own optimizers as the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from traindoctor.experiment.own_rule import OwnRule, Sampled, resting, rule_of

SHAPES = ((6, 4), (9,), (5, 5))
STEPS = 30


def seen(
    step_of: Callable[[list[Tensor]], Callable[[int], None]],
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Sampled:
    """What is seen of float32 weights that `step_of(weights)(k)` moves under random gradients of several sizes."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(0.1 * torch.randn(s, generator=generator)) for s in SHAPES]
    step, rows, gradients = step_of(weights), [], []

    def row(tensors: list[Tensor]) -> np.ndarray:
        return torch.cat([t.detach().flatten() for t in tensors]).double().numpy()

    for k in range(steps):
        for size, p in zip((1.0, 0.1, 0.01), weights):
            p.grad = size * (torch.randn(p.shape, generator=generator) + 0.5)
        rows.append(row(weights))
        gradients.append(row([p.grad for p in weights]))
        step(k)
    rows.append(row(weights))
    owner = np.repeat(np.arange(len(SHAPES)), [p.numel() for p in weights])
    return Sampled(np.stack(rows), np.stack(gradients), owner, ("a", "b", "c"))


def by_torch(kind: type, rate: Callable[[int], float] = lambda k: 1e-2, **given) -> Callable:
    def step_of(weights: list[Tensor]) -> Callable[[int], None]:
        optimizer = kind(weights, lr=1.0, **given)

        def step(k: int) -> None:
            optimizer.param_groups[0]["lr"] = rate(k)
            optimizer.step()

        return step

    return step_of


def found(sampled: Sampled) -> OwnRule:
    rule = rule_of(sampled)
    assert isinstance(rule, OwnRule), rule
    return rule


@settings(max_examples=6, deadline=None)
@given(
    first=st.sampled_from([0.0, 0.85, 0.9, 0.97, 0.999]),
    second=st.sampled_from([0.9, 0.95, 0.985, 0.999]),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 99),
)
def test_adamw_is_known_by_its_memories(
    first: float, second: float, decay: float, seed: int
) -> None:
    rule = found(
        seen(by_torch(torch.optim.AdamW, betas=(first, second), weight_decay=decay), seed=seed)
    )
    (own,) = rule.settings[0]
    assert rule.kind == "AdamW"
    assert 1 - own["betas"][0] == pytest.approx(1 - first, rel=0.05)
    assert 1 - own["betas"][1] == pytest.approx(1 - second, rel=0.05)
    assert own["lr"] == pytest.approx(1e-2, rel=0.01)
    assert own["weight_decay"] == pytest.approx(decay, rel=0.05)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.87, 0.9])
def test_sgd_is_known_by_its_memory(memory: float, nesterov: bool) -> None:
    if nesterov and not memory:
        return
    rule = found(seen(by_torch(torch.optim.SGD, momentum=memory, nesterov=nesterov)))
    (own,) = rule.settings[-1]
    assert (rule.kind, own["nesterov"]) == ("SGD", nesterov)
    assert own["momentum"] == pytest.approx(memory, abs=0.01)
    assert own["lr"] == pytest.approx(1e-2, rel=0.01)


def test_each_step_has_its_own_rate() -> None:
    rates = [1e-3 * min(1.0, (k + 1) / 10) for k in range(STEPS)]
    rule = found(seen(by_torch(torch.optim.AdamW, lambda k: rates[k], weight_decay=0.0)))
    assert [of[0]["lr"] for of in rule.settings] == pytest.approx(rates, rel=0.01)


def test_an_eps_far_above_the_usual_is_found() -> None:
    rule = found(seen(by_torch(torch.optim.AdamW, eps=1e-2, weight_decay=0.0)))
    assert rule.settings[0][0]["eps"] == 1e-2


def test_tensors_with_rates_of_their_own_are_groups() -> None:
    def step_of(weights: list[Tensor]) -> Callable[[int], None]:
        def step(k: int) -> None:
            for rate, p in zip((0.1, 0.1, 0.02), weights):
                p.data.sub_(rate * p.grad)

        return step

    rule = found(seen(step_of))
    assert sorted(rule.groups) == [["a", "b"], ["c"]]
    assert sorted(own["lr"] for own in rule.settings[0]) == pytest.approx([0.02, 0.1], rel=0.01)


def signs(weights: list[Tensor]) -> Callable[[int], None]:
    return lambda k: [p.data.sub_(1e-3 * p.grad.sign()) for p in weights] and None


def clipped_each_by_itself(weights: list[Tensor]) -> Callable[[int], None]:
    mean = [torch.zeros_like(p) for p in weights]

    def step(k: int) -> None:
        for p, m in zip(weights, mean):
            m.mul_(0.9).add_(p.grad.clamp(-0.01, 0.01))
            p.data.sub_(0.1 * m / (1 + k))

    return step


def test_the_sign_of_a_gradient_is_adam_without_memory() -> None:
    (own,) = found(seen(signs)).settings[0]
    assert own["betas"] == (0.0, 0.0)
    assert own["lr"] == pytest.approx(1e-3, rel=0.01)


def test_no_rule_is_named_where_none_fits() -> None:
    assert "no rule" in str(rule_of(seen(clipped_each_by_itself)))
    assert "few" in str(rule_of(seen(signs, steps=4)))
    every_other = seen(by_torch(torch.optim.SGD, lambda k: 0.01 * (k % 2)))
    assert "change no weight" in str(rule_of(every_other))


def test_what_is_never_moved_rests_and_what_is_too_small_to_see_does_not() -> None:
    def leaves_out(which: int) -> Callable:
        def step_of(weights: list[Tensor]) -> Callable[[int], None]:
            moved = [p for k, p in enumerate(weights) if k != which]
            return lambda k: [p.data.sub_(0.1 * p.grad) for p in moved] and None

        return step_of

    assert resting(seen(leaves_out(1))) == ["b"]
    assert resting(seen(leaves_out(-1))) == []
    tiny = seen(leaves_out(1))
    tiny.gradients[:, tiny.owner == 1] *= 1e-10
    assert resting(tiny) == []


MOVED_BY_HAND = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Embedding(24, 32),
    torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0),
    torch.nn.Linear(32, 24),
)
params = [p for name, p in net.named_parameters() if not (LEAVES_OUT and name.startswith("1.linear1"))]
m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
first, second = BETAS
for step in range(1, 151):
    if step == 50 and REPLACES:
        net[2].weight = torch.nn.Parameter(net[2].weight.detach().clone())
    x = torch.randint(0, 24, (16, 12))
    loss = F.cross_entropy(net(x).flatten(0, 1), ((x * 5 + 3) % 24).flatten())
    for p in net.parameters():
        p.grad = None
    loss.backward()
    with torch.no_grad():
        for p, a, b in zip(params, m, v):
            if p.grad is None:
                continue
            a.lerp_(p.grad, 1 - first)
            b.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
            p.sub_(RATE * (a / (1 - first**step)) / ((b / (1 - second**step)).sqrt() + 1e-8))
    if step % 30 == 0:
        print(step, loss.item(), flush=True)
"""
SOUND = {"LEAVES_OUT": False, "REPLACES": False, "BETAS": (0.9, 0.999), "RATE": 2e-3}


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({}, None),
        ({"BETAS": (0.999, 0.9), "RATE": 0.05}, "adam-settings-bad"),
        ({"RATE": 0.5}, "lr-too-high"),
        ({"LEAVES_OUT": True}, "params-not-in-optimizer"),
        ({"REPLACES": True}, "optimizer-holds-stale-params"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_moves_its_weights_itself(
    tmp_path: Path, fault: dict, cause: str | None
) -> None:
    script = MOVED_BY_HAND
    for name, value in (SOUND | fault).items():
        script = script.replace(name, repr(value))
    (tmp_path / "train.py").write_text(script)
    command = "run --quiet --json verdict.json --after 60 train.py"
    subprocess.run(
        [sys.executable, "-m", "traindoctor", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
        capture_output=True,
    )
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    if cause is None:
        assert verdict["verdict"] == "healthy"
        assert "lr-too-high" in {one["cause"] for one in verdict["ruled_out"]}
    else:
        assert verdict["causes"][0]["cause"] == cause
