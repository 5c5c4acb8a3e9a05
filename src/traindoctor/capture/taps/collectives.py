"""Collectives: no event is made of them. While a step is taped the recorder hears them; ours are refused."""

from __future__ import annotations

from traindoctor.capture.hub import Patches
from traindoctor.ground import exchange


def install(patches: Patches) -> None:
    exchange.install()
    patches.on_undo(exchange.uninstall)
