"""The table of exams. An exam is imported when it is wanted: none costs anything before."""

import importlib
from typing import Any

# Exams, and the modules of those that are not in one of their own name.
NAMES = (
    "tape_gradient functions_alone printed_loss loss_coefficient gradient_flow loss_input first_nonfinite "
    "precision_ladder half_gradients accumulation finite_difference kept_tensors layers_alone guilty_module "
    "batched_forward shift dependence numbers_seen rows_apart pairing example_order positions place_codes "
    "softmax_axis attention_scores init_scale zero_factors input_dependence residual dead_units normalisation "
    "padding frozen_targets sharing overfit_batch reference_model reference_numbers order_matters generation "
    "outside_changes gradient_arrival experiment_rate_down experiment_rate_long experiment_rate_up "
    "experiment_schedule experiment_decay experiment_decay_start experiment_clip experiment_adam "
    "experiment_precision experiment_loss_scale"
)
ELSEWHERE = {
    "guilty_module": "layers_alone",
    "outside_changes": "outside",
    "gradient_arrival": "arrival",
    "experiment": "counterfactual",
}
# exam -> module of traindoctor.exams; the module's attribute of the exam's name is the Exam
EXAMS: dict[str, str] = {
    name: ELSEWHERE.get("experiment" if name.startswith("experiment_") else name, name)
    for name in NAMES.split()
}


def load(name: str) -> Any:
    """The Exam of that name."""
    module = importlib.import_module(f"traindoctor.exams.{EXAMS[name]}")
    return getattr(module, name)
