"""Where the loss is taken: calls of torch's loss functions, and losses written by hand, wherever they stand."""

from collections.abc import Sequence

import torch

from traindoctor.graph.origins import argument, depends_on
from traindoctor.graph.sites import LossSite
from traindoctor.graph.squares import by_hand
from traindoctor.graph.written_losses import one_hot_site, picked_site
from traindoctor.tape.operators import CLASS_LOSSES, DISTANCES, PICKING
from traindoctor.tape.ops import DATA, Op, Ref, is_float
from traindoctor.tape.tape import StepTape

# position of (input, target, reduction, ignore_index) in torch's own loss functions
TORCH_LOSSES: dict[str, tuple[int, int | None]] = {
    "cross_entropy": (6, 4),
    "nll_loss": (6, 4),
    "binary_cross_entropy": (5, None),
    "binary_cross_entropy_with_logits": (5, None),
    "mse_loss": (4, None),
    "l1_loss": (4, None),
    "smooth_l1_loss": (4, None),
    "huber_loss": (2, None),
    "kl_div": (4, None),
}


def loss_sites(tape: StepTape) -> list[LossSite]:
    """In the order of their ops. The tape is told which predictions are wanted before they are written over."""
    if loss_sites not in tape.memo:
        sites = find_loss_sites(tape)
        tape.overwritten_predictions = overwritten_predictions(tape, sites)
        tape.memo[loss_sites] = sites
    return tape.memo[loss_sites]  # type: ignore[no-any-return]


def overwritten_predictions(tape: StepTape, sites: Sequence[LossSite]) -> dict[int, Ref]:
    """By the number of the loss's op. A loss written for speed makes its gradient in the memory of the logits."""
    last: dict[int, int] = {}
    for op in tape.ops:
        for ref in op.writes:
            last[tape.geometry[ref.index].storage] = op.number
    return {
        site.op.number: site.logits
        for site in sites
        if last.get(tape.geometry[site.logits.index].storage, -1) > site.op.number
    }


def find_loss_sites(tape: StepTape) -> list[LossSite]:
    roots = [root.ref for root in tape.roots if root.ref is not None]
    in_root = {op.number for op in tape.needed(roots)}
    sites = []
    for op in tape.ops:
        if op.kind in TORCH_LOSSES:
            site = _torch_site(tape, op)
        elif op.kind in PICKING:
            site = picked_site(tape, op)
        elif op.kind == "mul":
            site = one_hot_site(tape, op)
        elif op.kind in DISTANCES:
            site = by_hand(tape, op)
        else:
            continue
        if site is not None:
            site.in_root = op.number in in_root
            sites.append(site)
    return sites


def _torch_site(tape: StepTape, op: Op) -> LossSite | None:
    logits = argument(op, 0, "input")
    target_ref = argument(op, 1, "target")
    targets = op.index
    if not isinstance(logits, Ref) or targets is None:
        return None
    reduction_place, ignore_place = TORCH_LOSSES[op.kind]
    size = tape.geometry[logits.index].size
    kind, class_dim, num_classes = op.kind, None, 1
    flat = targets.reshape(-1)
    valid = torch.ones_like(flat, dtype=torch.bool)
    if op.kind in CLASS_LOSSES:
        class_dim = 1 if len(size) > 1 else 0
        num_classes = size[class_dim]
        if is_float(targets):
            kind = "cross_entropy_soft"
            flat = targets.movedim(class_dim, -1).reshape(-1, num_classes)
            valid = flat.sum(-1) > 0
        else:
            valid = flat != argument(op, ignore_place, "ignore_index", -100)
    return LossSite(
        op=op,
        kind=kind,
        logits=logits,
        targets=flat,
        valid=valid,
        reduction=str(argument(op, reduction_place, "reduction", "mean")),
        line=op.line,
        class_dim=class_dim,
        num_classes=num_classes,
        from_data=depends_on(tape, target_ref) & DATA != 0,
        in_root=False,
    )
