"""What each exam measured, in one line: the measure, its value, what it should be, and the test's own noise.

Checks judge; this only says the number that a judgement rests on, for exams that found nothing as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from traindoctor.report.words import number

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """One line. `fine` is the exam's own answer where no check asks for it; None: it only informs."""

    text: str
    value: float | str | None
    expected: float | str | None = None
    noise: float | None = None
    fine: bool | None = None


def tape_gradient(v: Values) -> Measured:
    return Measured("largest relative error", v["difference"], 0, v["noise"])


def functions_alone(v: Values) -> Measured:
    tested = [f for f in v["functions"] if f["test"] != "none"]
    if not tested:
        return Measured("Functions that could be tested", 0, len(v["functions"]))
    worst = max(tested, key=lambda f: float(f["difference"]))
    text = f"{worst['name']}: largest relative error"
    return Measured(text, worst["difference"], 0, worst["noise"])


def finite_difference(v: Values) -> Measured:
    fine = {"pass": True, "wrong": False}.get(v["outcome"])
    text = "largest relative error, 4 directions"
    if fine is False and v["cut_paths"]:
        # A path cut on purpose moves the loss and has no gradient: no error of a backward pass.
        return Measured(f"{text}; {v['cut_paths']} detached paths", v["difference"], 0, v["noise"])
    return Measured(text, v["difference"], 0, v["noise"], fine)


def layers_alone(v: Values) -> Measured:
    wrong = [layer for layer in v["layers"] if layer["outcome"] == "wrong"]
    decided = [layer for layer in v["layers"] if layer["outcome"] != "undecided"]
    text = f"wrong modules among {len(decided)} decided of {len(v['layers'])}"
    if wrong:
        text += ": " + ", ".join(layer["module"] for layer in wrong[:3])
    return Measured(text, len(wrong), 0, fine=not wrong if decided else None)


def guilty_module(v: Values) -> Measured:
    fine = {"pass": True, "wrong": False}.get(v["outcome"])
    if fine is False:
        text = f"{v['module']}, the innermost wrong module: relative error"
    else:
        text = f"largest relative error of {v['tested']} parts"
    return Measured(text, v["difference"], 0, v["noise"], fine)


def printed_loss(v: Values) -> Measured:
    return Measured("cosine of the two gradients", v["cosine"], 1)


def loss_coefficient(v: Values) -> Measured:
    main = v["main"]
    return Measured(f"factor of {main['kind']} in the gradient", main["coefficient"], 1)


def accumulation(v: Values) -> Measured:
    text = f"unevenness of the weights of {v['micro_batches']} micro-batches"
    return Measured(text, v["unevenness"], 0, fine=v["unevenness"] < 0.5)


def gradient_flow(v: Values) -> Measured:
    text = f"tensors without gradient that affect the loss, of {v['trainable']}"
    return Measured(text, v["blocked"], 0)


def gradient_arrival(v: Values) -> Measured:
    if v["by_hand"] == "clip":
        return Measured("limit of the script's own clipping", v["value"])
    if v["by_hand"] == "unit clip":
        return Measured("norm left by the script's own clipping per tensor or row", v["value"])
    if not v["factors"]:
        return Measured("steps with clipping or loss scaling", 0)
    return Measured("gradient at the step relative to that of backward", v["factors"][-1], 1)


def outside_changes(v: Values) -> Measured:
    text = "tensors that shrink between the optimizer's steps"
    return Measured(text, v["tensors"], 0)


def loss_input(v: Values) -> Measured:
    site = v["sites"][0]
    kind = "probabilities" if site["probabilities"] or site["between_0_and_1"] else "scores"
    kind = "log-probabilities" if site["log_probabilities"] else kind
    wanted = "log-probabilities" if site["kind"].startswith("nll") else "scores"
    text = f"{site['kind']} gets {site['lowest']:.3g} to {site['highest']:.3g}, which are"
    return Measured(text, kind, wanted)


def shift(v: Values) -> Measured:
    known = [pair for pair in v["pairs"] if pair["shift"] is not None]
    if not known:
        places = next((p["places"] for p in v["pairs"] if p["places"]), None)
        return Measured("targets against inputs", places or "no constant shift", None)
    pair = known[0]
    text = f"targets are the inputs shifted by ({pair['compared']} compared)"
    return Measured(text, f"{pair['shift']:+d}", "+1")


def dependence(v: Values) -> Measured:
    pairs = [p for p in v["pairs"] if p["finite"]]
    causal = [p for p in pairs if p["expects_causal"] and "future" in p]
    if causal:
        text = "change of logits before a changed token"
        return Measured(text, max(p["future"] for p in causal), 0, 1e-5)
    rows = [p["other_rows"] for p in pairs if "other_rows" in p]
    return Measured("change of other examples' logits", max(rows, default=None), 0, 1e-5)


def positions(v: Values) -> Measured:
    gap = min(pair["gap"] for pair in v["pairs"])
    return Measured("change of the logits when tokens are reordered", gap, "> 0", 1e-5)


def softmax_axis(v: Values) -> Measured:
    if not v["attentions"]:
        return Measured("attention layers with PyTorch's own softmax", v["built_in"], v["built_in"])
    worst = max(v["attentions"], key=lambda a: float(a["off"]))
    return Measured(
        "distance from 1 of the weights' sum over the keys", worst["off"], 0, worst["noise"]
    )


def attention_scores(v: Values) -> Measured:
    stds = [a["std"] for a in v["attentions"]]
    scales = [a["scale"] for a in v["attentions"] if a["scale"] is not None]
    if not scales:
        return Measured("largest standard deviation of scores", max(stds), "0.02 to 4")
    text = f"scale on q.k relative to 1/sqrt(d) (scores have std {number(max(stds))})"
    return Measured(text, max(scales, key=lambda scale: abs(scale - 1)), 1)


def init_scale(v: Values) -> Measured:
    if "loss_ratio" not in v:
        return Measured("weight RMS times sqrt(fan_in)", v["weight_scale"], "0.1 to 2")
    text = f"first loss {number(v['loss'])} over ln {v['classes']} = {number(v['ln_classes'])}"
    return Measured(text, v["loss_ratio"], 1)


def zero_factors(v: Values) -> Measured:
    text = f"weights that can never leave zero, of {v['parameters']}"
    return Measured(text, v["stuck"], 0)


def input_dependence(v: Values) -> Measured:
    return Measured("share of the logits that changes with the input", v["last"], "> 1e-5")


def residual(v: Values) -> Measured:
    text = f"attention layers with a skip path, of {v['attentions']}"
    return Measured(text, v["attentions_bypassed"], v["attentions"])


def dead_units(v: Values) -> Measured:
    return Measured("dead units of the worst layer", max(x["dead"] for x in v["layers"]), "< 1")


def normalisation(v: Values) -> Measured:
    axes = sorted({axis for norm in v["norms"] for axis in norm["axes"]})
    text = f"{len(v['norms'])} normalisations run over"
    return Measured(text, ", ".join(axes) or "nothing", "feature")


def padding(v: Values) -> Measured:
    return Measured(
        "share of the targets that are padding", max(p["counted"] for p in v["pairs"]), 0
    )


def frozen_targets(v: Values) -> Measured:
    return Measured("active dropout calls on the way to the targets", v["dropouts"], 0)


def sharing(v: Values) -> Measured:
    found = len(v["listed"]) + len(v["aliased"])
    return Measured(f"layers listed twice, of {v['matrices']} matrices", found, 0)


def step_accounting(v: Values) -> Measured:
    return Measured("error of the weight change against the update rule", v["error"], 0, fine=None)


def overfit_batch(v: Values) -> Measured:
    text = f"loss after {v['steps']} steps on this batch alone, {v['start']:.3g} before"
    if not v["learned"]:
        text += "; it has stopped falling" if v["stalled"] else "; it is still falling"
    fine = True if v["learned"] else (False if v["stalled"] else None)
    return Measured(text, v["end"], f"near {v['floor']:.2g}", fine=fine)


def reference_numbers(v: Values) -> Measured:
    text = f"squared error of a reference model after {v['steps']} steps, relative to predicting the mean"
    return Measured(text, v["held_out"], "under 0.9", v["noise"])


def reference_model(v: Values) -> Measured:
    text = f"loss of a reference model on unseen batches after {v['steps']} steps"
    expected = f"< {number(v['guessing'])}"
    return Measured(text, v["held_out"], expected, v["noise"])


def pairing(v: Values) -> Measured:
    told, strange = (sum(loss.get(key, 0) for loss in v["losses"]) for key in ("told", "strange"))
    text = f"of {told} examples, those compared with another example's target"
    return (
        Measured(text, strange, 0) if told else Measured("the examples cannot be told apart", None)
    )


def example_order(v: Values) -> Measured:
    return Measured(
        "share of predictions that stray in another order of the batch", v["strayed"], 0
    )


def order_matters(v: Values) -> Measured:
    text = f"nats that positions gain a reference model after {v['steps']} steps"
    return Measured(text, v["gain"], None, v["noise"])


def precision_ladder(v: Values) -> Measured:
    errors = []
    for name, rung in v["rungs"].items():
        if rung.get("overflow"):
            errors.append(f"{name} overflows in {rung['overflow']['op']}")
        elif rung.get("gradient") is not None:
            errors.append(f"{name} {rung['gradient']:.0e}")
    return Measured(f"error of the gradient: {', '.join(errors) or 'not known'}", None)


def half_gradients(v: Values) -> Measured:
    text = f"gradient entries lost ({', '.join(v['dtypes'])})"
    return Measured(text, v["gradient_lost"], 0)


def batched_forward(v: Values) -> Measured:
    text = f"{v['examples']} examples: time one by one relative to one batch"
    return Measured(text, v["gain"], "< 2", v["noise"])


def kept_tensors(v: Values) -> Measured:
    text = f"nodes of the longest live autograd graph after {v['steps']} steps"
    return Measured(text, v["graph_nodes"], None if v["step_ops"] is None else f"~ {v['step_ops']}")


def first_nonfinite(v: Values) -> Measured:
    place = v.get("line") or v.get("module") or "unknown place"
    return Measured("first non-finite value", f"{v['op'] or 'not found'}, {place}", "none")


def generation(v: Values) -> Measured:
    text = f"greedy samples that loop (random samples {number(v['sampled']['loops'])})"
    return Measured(text, v["greedy"]["loops"], f"{number(v['data']['loops'])} in the data")


def experiment(v: Values) -> Measured:
    trials = {name: t["loss"] for name, t in v["variants"].items() if t["loss"] is not None}
    control = v["control"]["loss"]
    if not trials or control is None:
        return Measured(f"loss after {v['steps']} steps", "diverges", None)
    best = min(trials, key=lambda name: trials[name])
    losses = [t["loss"] for t in v["permuted"] if t["loss"] is not None]
    noise = max((abs(loss - control) for loss in losses), default=None)
    text = f"loss after {v['steps']} steps with {best}; expected: without"
    return Measured(text, trials[best], control, noise)


# exam -> (what it asks, in words; how its numbers are read), in the order of the table
EXAMS: dict[str, tuple[str, Callable[[Values], Measured]]] = {
    "shift": ("targets against inputs", shift),
    "padding": ("padding in the loss", padding),
    "frozen_targets": ("dropout in the targets", frozen_targets),
    "loss_input": ("input of the loss", loss_input),
    "init_scale": ("loss before training", init_scale),
    "zero_factors": ("weights that stay zero", zero_factors),
    "tape_gradient": ("gradient by autograd", tape_gradient),
    "functions_alone": ("hand-written Functions", functions_alone),
    "finite_difference": ("gradient by differences", finite_difference),
    "layers_alone": ("every module by itself", layers_alone),
    "guilty_module": ("innermost wrong module", guilty_module),
    "printed_loss": ("printed loss", printed_loss),
    "loss_coefficient": ("weight of the loss", loss_coefficient),
    "accumulation": ("micro-batches", accumulation),
    "gradient_arrival": ("gradients before the step", gradient_arrival),
    "outside_changes": ("weights between steps", outside_changes),
    "gradient_flow": ("gradient flow", gradient_flow),
    "dependence": ("which token sees which", dependence),
    "positions": ("token order", positions),
    "softmax_axis": ("attention weights", softmax_axis),
    "attention_scores": ("attention scores", attention_scores),
    "residual": ("skip paths", residual),
    "normalisation": ("axes of normalisation", normalisation),
    "dead_units": ("dead units", dead_units),
    "sharing": ("shared layers", sharing),
    "input_dependence": ("input dependence", input_dependence),
    "step_accounting": ("the optimizer's step", step_accounting),
    "overfit_batch": ("fitting one batch", overfit_batch),
    "reference_model": ("can the data be learned", reference_model),
    "pairing": ("examples and their targets", pairing),
    "example_order": ("order of the examples", example_order),
    "order_matters": ("does order help", order_matters),
    "reference_numbers": ("can the targets be learned", reference_numbers),
    "precision_ladder": ("precision", precision_ladder),
    "half_gradients": ("half precision", half_gradients),
    "first_nonfinite": ("first non-finite value", first_nonfinite),
    "batched_forward": ("batching the examples", batched_forward),
    "kept_tensors": ("tensors kept alive", kept_tensors),
    "generation": ("generated text", generation),
    "experiment_rate_down": ("lower learning rate", experiment),
    "experiment_rate_long": ("lower learning rate, long", experiment),
    "experiment_rate_up": ("higher learning rate", experiment),
    "experiment_schedule": ("another schedule", experiment),
    "experiment_decay": ("less weight decay", experiment),
    "experiment_decay_start": ("less weight decay, early", experiment),
    "experiment_clip": ("higher clip limit", experiment),
    "experiment_adam": ("usual Adam settings", experiment),
    "experiment_precision": ("float32 copies of the weights", experiment),
    "experiment_loss_scale": ("mean instead of sum", experiment),
}
