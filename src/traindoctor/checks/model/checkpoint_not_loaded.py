from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Outcome, check, evidence, watched
from traindoctor.checks.consequences import TOO_SHORT
from traindoctor.record import Record

# Beside a wrapped body a head may have the right name: of all that could have been loaded, at most so much was.
FEW = 0.1
# Of the tensors of the model or of the checkpoint, whichever has fewer: layers that two models share by chance are less.
MOST = 0.5
ALWAYS = (
    "Where the model was wrapped, save the inner module: `model.module.state_dict()`. Look at what "
    "`load_state_dict` returns: `missing_keys` and `unexpected_keys`."
)


@check(
    code="MOD014",
    slug="checkpoint-not-loaded",
    title="Weights are loaded under names that the model does not have, so none of them arrive",
    law=laws.LOADED,
    explains=TOO_SHORT,
)
def checkpoint_not_loaded(record: Record) -> Outcome:
    """
    ## What it does
    Looks at each `load_state_dict(..., strict=False)`: among the names that the model misses and those that it does
    not expect, are there tensors of the same shape whose names are equal once a common prefix is removed? Then it
    looks, before the next step, whether the values arrived in another way.
    ## Why it matters
    `strict=False` raises no error: the model trains from its random initialisation, or a frozen part stays random.
    ## How to fix
    Rename the keys before loading (`{k.removeprefix("module."): v for k, v in state.items()}`), or save the inner
    module: `model.module.state_dict()`. Look at what `load_state_dict` returns: `missing_keys` and `unexpected_keys`.
    ## When it stays silent
    A new head, adapters (LoRA) and other weights that the checkpoint does not have; a checkpoint that is loaded
    again under the right names before the next step; modules that the run never uses.
    """
    calls = record.fact("weights.loaded")
    if calls is None:
        if watched(record):
            return checkpoint_not_loaded.not_applicable("no call of load_state_dict was seen")
        return checkpoint_not_loaded.not_judged(
            "it is not known whether the script loads weights", why="not-measured"
        )
    lost = [call for call in calls if nothing_arrived(call)]
    if not lost:
        return checkpoint_not_loaded.clear("the weights that were loaded are in the model")
    call = max(lost, key=lambda call: call["left"])
    return checkpoint_not_loaded.finding(
        evidence("tensors loaded", call["loaded"], call["asked"], step=call["step"]),
        evidence("tensors of the checkpoint left under another name", call["left"], 0),
        summary=f"load_state_dict(strict=False) loaded {call['loaded']} of {call['asked']} tensors of "
        f"{call['module']}: {difference(call)}",
        remedy=f"Rename the keys before loading: `{renamed(call)}`. {ALWAYS}",
        line=call["line"],
        since_step=call["step"],
        grade="exact",
    )


def nothing_arrived(call: Mapping[str, Any]) -> bool:
    """Nearly nothing that could be loaded was, and most of it is there under another name."""
    if call["loaded"] > FEW * (call["loaded"] + call["pairs"]):
        return False
    return bool(call["left"] >= MOST * min(call["asked"], call["given"]))


def difference(call: Mapping[str, Any]) -> str:
    own, given = call["own_prefix"], call["given_prefix"]
    if not own:
        return f"the checkpoint's names begin with `{given}` and the model's do not"
    if not given:
        return f"the model's names begin with `{own}` and the checkpoint's do not"
    return f"the checkpoint's names begin with `{given}` and the model's with `{own}`"


def renamed(call: Mapping[str, Any]) -> str:
    own, given = call["own_prefix"], call["given_prefix"]
    key = f'k.removeprefix("{given}")' if given else "k"
    return f"{{{f'{own!r} + ' if own else ''}{key}: v for k, v in state.items()}}".replace("'", '"')
