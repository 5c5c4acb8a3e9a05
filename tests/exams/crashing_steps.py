"""A step that is not finite, after one that was."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from single_step import tape_step
from traindoctor.events import BackwardBegin, BackwardEnd, ForwardBegin, StepEnd
from traindoctor.experiment.crash import CrashKeeper
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.snapshot import StepLog
from traindoctor.ground.names import Names

CALM = torch.tensor([1.0, 2.0, 3.0, 4.0])


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.5))
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "divide":
            return ((x - x.mean()) / x.std() * self.weight).sum()
        if self.kind == "exp":
            e = (x * self.weight).exp()
            return (e / e.sum()).log().sum()
        if self.kind == "mask":
            scores = (x * self.weight)[None].masked_fill(torch.eye(4)[:1].bool(), -torch.inf)
            return scores.softmax(-1).sum() / (x - x.mean()).abs().max()
        if self.kind == "skip":
            h = x * self.weight
            return (h + h.square().sqrt()).sum()  # what the root spoils, the sum uses as well
        return (x * self.weight).abs().sum().sqrt()


class Log:
    """Stands for the snapshot keeper: what the taped step worked on."""

    def __init__(self, log: StepLog) -> None:
        self.logs = {log.step: log}


def crash(kind: str, good: Tensor, bad: Tensor) -> Patient:
    """A healthy taped step, then one that breaks."""
    model = Model(kind)
    patient = Patient(names=Names(model), model=model)
    patient.add_tape(tape_step(lambda: model(good), model))
    log = StepLog(0)
    log.data["forward", 0, 0] = good
    patient.snapshot = Log(log)
    keeper = CrashKeeper(patient.names)
    for step, x in ((1, good), (2, bad)):
        keeper.on(ForwardBegin(model, (x,), {}, True, True), step)
        loss = model(x)
        keeper.on(BackwardBegin([loss], True, 1.0), step)
        model.zero_grad()
        loss.backward()
        keeper.on(BackwardEnd([loss], 0.0), step)
        if keeper.crash is None:
            keeper.on(StepEnd(None, step, 0.0), step)  # type: ignore[arg-type]
    patient.crash = keeper.crash
    return patient
