"""Does the model itself treat a token as padding? Then tails of it are padding, whatever their length."""

import torch
from torch import Tensor

from traindoctor.graph.ends import Ends
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.origins import argument
from traindoctor.graph.sites import InputSite
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape

# What is masked moves a replayed loss by nothing, what is read by 1e-3 and more of it.
UNMOVED = 1e-6


def known_as_padding(tape: StepTape, ends: Ends, token: int) -> bool:
    """The table calls it padding, or rows of another text of that table end in it and it is masked there."""
    if argument(ends.tokens.op, 2, "padding_idx") == token:
        return True
    return any(
        masked_at_ends(tape, site, token)
        for site in input_sites(tape)
        if site.kind == "data"
        and site.index is not None
        and site.index.ndim == 2
        and site.weight is not None
        and site.weight == ends.tokens.weight
        and not torch.equal(site.index, ends.tokens.index)  # type: ignore[arg-type]
    )


def masked_at_ends(tape: StepTape, site: InputSite, token: int) -> bool:
    """Other tokens in its place change nothing; other tokens elsewhere do."""
    assert site.index is not None
    index = site.index.detach()
    pads = index == token
    lengths = pads.sum(1)
    at_end = torch.arange(index.shape[1], device=index.device) >= index.shape[1] - lengths[:, None]
    if not torch.equal(pads, at_end) or not pads.any() or bool((lengths == lengths[0]).all()):
        return False
    others = index[~pads]
    if others.unique().numel() < 2:
        return False
    loss = float(replay(tape).loss)

    def moved(places: Tensor) -> float:
        new = torch.where(places, others.roll(1)[0], index)
        return abs(float(replay(tape, indices={site.op: new}).loss) - loss) / max(abs(loss), 1e-30)

    return moved(pads) <= UNMOVED < moved(~pads)
