"""What torch's function names tell the tape: which write, draw at random, select, or let values out of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from traindoctor.ground.nested import tensors_in
from traindoctor.tape.operators import LOSSES, SELECTING, operator_of

# Their value does not depend on the values of their tensor arguments, only on shape, dtype and device.
SHAPE_ONLY = frozenset(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones "
    "new_empty new_full new_tensor new_empty_strided size numel dim stride ndimension".split()
)
# No part of a computation that could be run again.
IGNORED = frozenset(
    "backward requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook set_grad "
    "set_data set_requires_grad set_grad_fn is_leaf grad_fn requires_grad shape dtype device ndim "
    "__repr__ __format__ __hash__ __len__ element_size is_contiguous storage_offset record_stream "
    "pin_memory share_memory_ set_name names get_rng_state set_rng_state manual_seed seed".split()
)
# Values leave torch here: what is made of them later cannot be followed.
ESCAPES = frozenset(
    "item tolist numpy __array__ data_ptr __dlpack__ untyped_storage storage __float__ __int__ __bool__ "
    "__index__ __complex__ cpu_numpy".split()
)
RANDOM = (
    "dropout attention rrelu bernoulli multinomial rand normal gumbel lstm gru rnn exponential uniform "
    "geometric cauchy poisson gamma dirichlet binomial"
).split()


def draws(name: str) -> bool:
    """Whether a function of this name may use the random state."""
    return any(word in name for word in RANDOM)


def written_to(name: str, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that the function is going to write to: one, or a list of them (`torch._foreach_add_`)."""
    out = kwargs.get("out")
    if isinstance(out, Tensor):
        return [out]
    return list(tensors_in(args[0])) if operator_of(name).in_place and args else []


def selected_by(name: str, args: Any, kwargs: Any) -> Tensor | None:
    """A copy of what selects: targets of a loss, tokens of an embedding; None for other functions."""
    kind = operator_of(name).kind
    if kind in LOSSES:
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        return target.detach().clone() if isinstance(target, Tensor) else None
    if kind not in SELECTING:
        return None
    # What is selected from may be integers too: a whole data set, of which rows are read one by one.
    selecting = args[1:] if kind == "index" else args
    integers = [
        tensor
        for tensor in tensors_in((selecting, kwargs))
        if not torch.is_floating_point(tensor) and tensor.dtype != torch.bool
    ]
    # x[rows, targets]: the last index is the one that picks a class.
    return integers[-1].detach().clone() if integers else None
