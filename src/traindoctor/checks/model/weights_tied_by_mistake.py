from collections.abc import Mapping
from typing import Any

from traindoctor.checks import laws
from traindoctor.checks.base import Finding, Outcome, check, evidence, wanted_exam
from traindoctor.record import Record


@check(
    code="MOD012",
    slug="weights-tied-by-mistake",
    title="Layers that should be different are the same module",
    wants=["sharing"],
    law=laws.DIFFERENT,
    undecided="weights can be shared on purpose",
    explains=("model-too-small", "undertrained"),
)
def weights_tied_by_mistake(record: Record) -> Outcome:
    """
    ## What it does
    Looks for one module object that stands several times in a list of layers, for modules that are shallow copies
    of one another, and for matrices that stand under several names.
    ## Why it matters
    `[Block()] * 6` is one block six times: the model has a sixth of its parameters, and the optimizer moves all
    six layers at once.
    ## How to fix
    Build each layer anew: `nn.ModuleList([Block() for _ in range(6)])`, or copy it with `copy.deepcopy`.
    ## When it stays silent
    Embeddings tied to the output, and one block that a loop calls several times (ALBERT, Universal
    Transformer): that is a decision. A list of one block whose entries work one after the other is only possible.
    """
    result = wanted_exam(record, "sharing")
    listed, tied = result.values["listed"], result.values["tied"]
    if listed:
        return listed_again(max(listed, key=lambda row: row["times"]), result.step)
    copied = result.values.get("copied", [])
    if copied:
        worst = max(copied, key=lambda row: row["times"])
        return weights_tied_by_mistake.finding(
            evidence("modules that hold the same weights", worst["times"], 1, step=result.step),
            where=worst["modules"][0],
            grade="statistic",
            since_step=0,
            summary=f"{worst['times']} modules are shallow copies of one: {', '.join(worst['modules'][:3])} have the "
            "same weights",
            remedy=(
                "Use `copy.deepcopy`: `copy.copy` gives a new module that shares the weights of "
                "the first."
            ),
        )
    aliased = result.values.get("aliased", [])
    if aliased:
        names = aliased[0]["modules"]
        return weights_tied_by_mistake.finding(
            evidence("uses of one layer per forward pass", aliased[0]["uses"], 1, step=result.step),
            evidence("its names", ", ".join(names), "one"),
            where=names[0],
            grade="statistic",
            since_step=0,
            summary=f"{' and '.join(names[:3])} are the same layer",
        )
    if tied:
        return weights_tied_by_mistake.finding(
            evidence("names of the same matrix", ", ".join(tied[0]), "one", step=result.step),
            where=tied[0][0],
            grade="statistic",
            status="possible",
            since_step=0,
        )
    reused = len(result.values["reused"])
    return weights_tied_by_mistake.clear(
        f"{reused} matrices are reused in a loop, none is listed twice"
        if reused
        else "no layer is listed twice"
    )


def listed_again(row: Mapping[str, Any], step: int) -> Finding:
    return weights_tied_by_mistake.finding(
        evidence("times the same module is in its list", row["times"], 1, step=step),
        evidence("entries in the list", row["of"]),
        where=row["modules"][0],
        grade="statistic",
        # One block that works at several depths is an architecture too (Universal Transformer): no value tells.
        status="possible" if row.get("in_depth") else None,
        since_step=0,
        summary=(
            f"{row['times']} layers are the same module: {', '.join(row['modules'][:3])}, ..."
        ),
    )
