"""What a recorded series is called in front of a user, and what is said where it is missing."""

WORDS: dict[str, tuple[str, str]] = {
    "loss.root": ("the training loss", "no training loss was seen"),
    "loss.token": ("the per-token loss", "the per-token loss could not be measured"),
    "loss.eval": ("the validation loss", "no validation loss was seen"),
    "optim.lr": ("the learning rate", "the learning rate is not known"),
    "optim.state_reset": ("the optimizer's state", "the optimizer's state was not seen"),
    "grad.norm": ("the gradient norm", "the gradient norm was not measured"),
    "grad.rms": ("the gradients per layer", "the gradients per layer were not measured"),
    "clip.limit": ("gradient clipping", "no gradient clipping was seen"),
    "batch.rowset": ("the batch", "no batch of data was seen"),
    "batch.rows": ("the batch", "no batch of data was seen"),
    "time.step": ("the time per step", "the time per step was not measured"),
    "time.data": (
        "the time spent waiting for data",
        "the time spent waiting for data was not measured",
    ),
    "time.loader": ("the time in the DataLoader", "no DataLoader was seen"),
    "graphs.old": ("live autograd graphs", "live autograd graphs were not counted"),
    "forward.calls": ("forward passes", "no forward pass of a module was seen"),
    "update.lost": ("the share of lost updates", "the share of lost updates was not measured"),
}


def said(series: str) -> str:
    return WORDS[series][0]


def missing(series: str) -> str:
    """A sentence: why nothing can be judged by it."""
    return WORDS[series][1]
