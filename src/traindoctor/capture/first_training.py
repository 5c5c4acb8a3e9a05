"""Child processes are watched from the moment they train: when they build an optimizer, or step one they were given.

Until then nothing of torch is replaced but `Optimizer.__init__`, and no event is made: most children load data.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from traindoctor.capture.hub import Patches
from traindoctor.capture.step_hooks import step_hooks
from traindoctor.ground.torch_private import is_in_bad_fork

_waiting: Patches | None = None


def wait_for_training(begin: Callable[[], None]) -> None:
    """Calls `begin` once. The optimizer's construction comes before step 0's forward pass, so nothing of it is missed."""
    global _waiting
    if _waiting is not None:
        return

    def trains() -> None:
        stop_waiting()
        if not (loads_data() or cut_off_from_gpu()):
            begin()

    _waiting = Patches()
    _waiting.replace(Optimizer, "__init__", functools.partial(_announced, trains))
    step_hooks.expect(trains)


def stop_waiting() -> None:
    global _waiting
    patches, _waiting = _waiting, None
    if patches is not None:
        patches.undo()
        step_hooks.expect_nothing()


def _announced(trains: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _waiting is None or torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        trains()
        # By its name: the tap that has just been put there hears of this optimizer.
        return Optimizer.__init__(self, *args, **kwargs)

    return __init__


def loads_data() -> bool:
    """A DataLoader's worker: whatever it optimizes is an example of the data, not the run."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def cut_off_from_gpu() -> bool:
    """Forked after its parent had used CUDA: whatever asks the device there ends the process, so we ask nothing."""
    return bool(is_in_bad_fork())
