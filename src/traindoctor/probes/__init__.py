"""The table of probes. Each is imported when a run is watched; one that cannot be is left out, and said."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traindoctor.probes.base import Probe

# "module:Class" of traindoctor.probes, made without arguments. Those that look at clocks come first: at the end of
# a step what the others do is our time, not the script's.
PROBES: tuple[str, ...] = (
    "timing:Timing",
    "sync:Sync",
    "loss:Loss",
    "gradient_norm:GradientNorm",
    "clipping:Clipping",
    "leftover:Leftover",
    "passes:Passes",
    "memory:Memory",
    "graphs:Graphs",
    "modes:Modes",
    "eval_dropout:EvalDropout",
    "running_statistics:RunningStatistics",
    "scaler:Scaler",
    "layers:Layers",
    "logits:Logits",
    "weights_crc:WeightsCrc",
    "activations:Activations",
    "attention:Attention",
    "environment:Environment",
    "loaded_weights:LoadedWeights",
    "targets:Targets",
    "target_numbers:TargetNumbers",
    "batches:Batches",
    "collated:Collated",
    "held_batch:HeldBatch",
    "random_state:RandomState",
    "ladder:Unigram",
    "ladder:Ladder",
    "label_order:LabelOrder",
    "number_order:NumberOrder",
    "relatedness:Relatedness",
    "coverage:Coverage",
    "rates:Rates",
    "step_accounting:StepAccounting",
    "half_moves:HalfMoves",
    "update:Update",
    "optimizer_state:OptimizerState",
    "state_age:StateAge",
    "clip_order:ClipOrder",
)


def make_probes(fault: Callable[[str, Exception], None]) -> list[Probe]:
    """One of each. A probe that cannot be made is a fault to report, not a reason to stop."""
    made: list[Probe] = []
    for row in PROBES:
        module, _, name = row.partition(":")
        try:
            made.append(getattr(importlib.import_module(f"traindoctor.probes.{module}"), name)())
        except Exception as error:  # the border: a broken probe must not take the run down
            fault(f"probe {name}", error)
    return made
