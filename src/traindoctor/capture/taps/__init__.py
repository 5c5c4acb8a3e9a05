"""Taps: each file hooks one part of torch and reports events to the hub. Importing one imports torch.

Every replacement begins with the same line, `if torch.compiler.is_compiling(): return original(...)`:
a compiled graph must not see us (it would break, or read values that do not exist yet).
"""

from __future__ import annotations

from traindoctor.capture.hub import Patches


def install() -> Patches:
    """Hooks torch. Undo it with the Patches that come back."""
    from traindoctor.capture.taps import (
        autograd,
        clip,
        collectives,
        compiled,
        dataloader,
        loading,
        loss,
        module,
        optimizer,
        precision,
        reads,
        swaps,
    )

    patches = Patches()
    for tap in (
        *(autograd, clip, collectives, compiled, dataloader),
        *(loading, loss, module, optimizer, precision, reads, swaps),
    ):
        tap.install(patches)
    return patches
