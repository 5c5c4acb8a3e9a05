"""An optimizer that was made before the last change of the model: it is made behind it."""

from traindoctor.checks.base import Finding
from traindoctor.fixes import params_not_in_optimizer
from traindoctor.fixes.nodes import argument
from traindoctor.fixes.optimizers import built
from traindoctor.fixes.places import only
from traindoctor.fixes.source import Edit, Source
from traindoctor.record import Record


def fix(source: Source, finding: Finding, record: Record) -> list[Edit]:
    """Where it was given all parameters of the model: what the model has got since is in no optimizer."""
    made = only(built(source, record))
    given = argument(made, 0, "params") if made is not None else None
    if given is None or params_not_in_optimizer.whole_model(source, given) is None:
        return []
    return params_not_in_optimizer.fix(source, finding, record)
