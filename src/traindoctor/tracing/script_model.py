"""Which modules of a script are the model that it trains, and where its hooks go."""

import gc

from torch import nn

from traindoctor.capture.hub import hub
from traindoctor.capture.subjects import num_parameters

PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def whole_model(called: nn.Module) -> nn.Module:
    """The model of which a part was called from outside: `model.loss(batch)` calls the embedding and block after block.

    Wrappers stay: what is compiled is seen from outside alone.
    """
    trained = {id(p) for o in list(hub.optimizers) for g in o.param_groups for p in g["params"]}
    if trained <= {id(parameter) for parameter in called.parameters()}:
        return called
    # By their class alone: an instance may answer `isinstance` with code of its own.
    alive: list[nn.Module] = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    holding = [one for one in alive if any(part is called for part in one.modules())]
    most = max(num_parameters(one) for one in [called, *holding])
    # Of several with the same parameters the innermost: a trainer object around the model puts its name before all.
    largest = [one for one in [called, *holding] if num_parameters(one) == most]
    return min(largest, key=lambda one: sum(1 for _ in one.modules()))


def hooked(model: nn.Module) -> nn.Module:
    """Without the wrappers of data parallelism: the module whose calls have the model's own names."""
    while isinstance(model, PARALLEL):
        inner: nn.Module = model.module
        model = inner
    return model
