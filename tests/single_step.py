"""Tapes one step that a test makes itself: there is no script to watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch._C import _EnableTorchFunction as EnableTorchFunction

from traindoctor.events import BackwardBegin, BackwardEnd, ScalarRead
from traindoctor.ground.names import Names
from traindoctor.tape.draft import MAX_BYTES
from traindoctor.tape.recorder import StepRecorder
from traindoctor.tape.tape import StepTape


def tape_step(
    losses: Callable[[], Tensor] | Sequence[Callable[[], Tensor]],
    *modules: nn.Module,
    names: Names | None = None,
    step: int = 0,
    keep_gradients: bool = False,
    max_bytes: int = MAX_BYTES,
) -> StepTape:
    """`tape_step(lambda: loss_fn(model(x), y), model)`: forward and backward, .grad as before.

    Several functions are micro-batches of one step. `keep_gradients` leaves .grad as a script would.
    """
    names = names or Names(*modules)
    functions = [losses] if callable(losses) else list(losses)
    recorder = StepRecorder(step, names, max_bytes=max_bytes)
    tensors = [tensor for _, tensor in names.parameters()]
    before = [(tensor, tensor.grad) for tensor in tensors]
    try:
        if not keep_gradients:
            for tensor in tensors:
                tensor.grad = None
        recorder.start()
        with torch.enable_grad(), EnableTorchFunction():
            for number, function in enumerate(functions):
                loss = function()
                recorder.on(BackwardBegin([loss], number == 0, 1.0))
                loss.backward()
                recorder.on(BackwardEnd([loss], 0.0))
                recorder.on(ScalarRead(loss, float(loss.detach().sum())))
        return recorder.finish()
    finally:
        recorder.close()
        if not keep_gradients:
            for tensor, gradient in before:
                tensor.grad = gradient
