"""Lets autograd call a forward and a backward that are not torch: C, CUDA, Go, by NumPy arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import TraindoctorError


@dataclass(frozen=True)
class Adapter:
    """A forward and a backward that are not torch: NumPy arrays in, NumPy arrays out.

    `forward(*arrays)` gives an array (or number), `backward(grad_output, *arrays)` the gradients of the inputs, in
    order, None for those without.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]

    def __call__(self, *tensors: Tensor) -> Tensor:
        made: Tensor = _Foreign.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return made


class _Foreign(torch.autograd.Function):
    """Lets autograd call an Adapter."""

    @staticmethod
    def forward(ctx: Any, adapter: Adapter, *tensors: Tensor) -> Tensor:
        ctx.adapter = adapter
        ctx.save_for_backward(*tensors)
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        made = torch.as_tensor(adapter.forward(*arrays))
        first = next(tensor for tensor in tensors if tensor.is_floating_point())
        return made.to(first.dtype) if not made.is_floating_point() else made.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        found = ctx.adapter.backward(grad.detach().cpu().numpy(), *arrays)
        found = found if isinstance(found, tuple | list) else (found,)
        if len(found) != len(tensors):
            raise TraindoctorError(
                f"the adapter's backward gave {len(found)} gradients for {len(tensors)} inputs: give one for each, "
                "None for those without"
            )
        return None, *(
            None if g is None else torch.as_tensor(g).to(t.dtype) for g, t in zip(found, tensors)
        )
