"""Two tensors whose insides the script exchanges: our weak references to them do not stand in the way."""

from __future__ import annotations

import torch

from traindoctor.capture.hub import Patches
from traindoctor.ground.our_ref import Uncounted


def install(patches: Patches) -> None:
    known = vars(torch.utils).get("weakref")
    if known is None:
        return
    ours = Uncounted()
    setattr(torch.utils, "weakref", ours)  # noqa: B010

    def undo() -> None:
        if vars(torch.utils)["weakref"] is ours:
            setattr(torch.utils, "weakref", known)  # noqa: B010

    patches.on_undo(undo)
