"""The table of exams. An exam is imported when it is wanted: none costs anything before."""

from __future__ import annotations

import importlib
from typing import Any

# exam -> module of traindoctor.exams; the module's `exam` attribute of the same name is the Exam
EXAMS: dict[str, str] = {
    "tape_gradient": "tape_gradient",
    "functions_alone": "functions_alone",
    "printed_loss": "printed_loss",
    "loss_coefficient": "loss_coefficient",
    "gradient_flow": "gradient_flow",
    "loss_input": "loss_input",
    "first_nonfinite": "first_nonfinite",
    "precision_ladder": "precision_ladder",
    "half_gradients": "half_gradients",
    "accumulation": "accumulation",
    "finite_difference": "finite_difference",
    "kept_tensors": "kept_tensors",
    "layers_alone": "layers_alone",
    "guilty_module": "layers_alone",
    "batched_forward": "batched_forward",
    "shift": "shift",
    "dependence": "dependence",
    "numbers_seen": "numbers_seen",
    "rows_apart": "rows_apart",
    "pairing": "pairing",
    "example_order": "example_order",
    "positions": "positions",
    "place_codes": "place_codes",
    "softmax_axis": "softmax_axis",
    "attention_scores": "attention_scores",
    "init_scale": "init_scale",
    "zero_factors": "zero_factors",
    "input_dependence": "input_dependence",
    "residual": "residual",
    "dead_units": "dead_units",
    "normalisation": "normalisation",
    "padding": "padding",
    "frozen_targets": "frozen_targets",
    "sharing": "sharing",
    "overfit_batch": "overfit_batch",
    "reference_model": "reference_model",
    "reference_numbers": "reference_numbers",
    "order_matters": "order_matters",
    "generation": "generation",
    "outside_changes": "outside",
    "gradient_arrival": "arrival",
    "experiment_rate_down": "counterfactual",
    "experiment_rate_long": "counterfactual",
    "experiment_rate_up": "counterfactual",
    "experiment_schedule": "counterfactual",
    "experiment_decay": "counterfactual",
    "experiment_decay_start": "counterfactual",
    "experiment_clip": "counterfactual",
    "experiment_adam": "counterfactual",
    "experiment_precision": "counterfactual",
    "experiment_loss_scale": "counterfactual",
}


def load(name: str) -> Any:
    """The Exam of that name."""
    module = importlib.import_module(f"traindoctor.exams.{EXAMS[name]}")
    return getattr(module, name)
