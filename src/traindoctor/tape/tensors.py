"""Tensors of the running step become Refs: parameters, data, constants, and views of memory that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter

from traindoctor.errors import ReplayError
from traindoctor.ground.memory import nbytes
from traindoctor.ground.names import is_trainable_leaf, local
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef
from traindoctor.tape.draft import Draft
from traindoctor.tape.ops import DATA, PARAMETER, FunctionCall, Geometry, Leaf, Op, Ref, refs_in
from traindoctor.tape.running_functions import RunningFunctions

# A tensor of the data larger than this is a data set, not a batch: what is read from it is the batch.
MAX_DATA_BYTES = 64 * 2**20


@dataclass(eq=False, slots=True)
class Storage:
    """What is known of one piece of memory that tensors share."""

    number: int
    weak: StorageWeakRef
    depends_on: int
    made: bool
    """The tape saw it being made; otherwise it was there before."""
    leaf: Ref | None = None
    base: Ref | None = None
    """A constant that the step wrote into: all of it, as it was before."""
    last: Ref | None = None
    """Some Ref that lies in it."""
    stranger: str | None = None
    """It has a gradient history that the tape does not know."""
    foreign: FunctionCall | None = None
    """A Function made it out of torch's sight: NumPy, a kernel of its own."""


class TensorTable:
    """Tensor objects and their memory, by identity. Holds no tensor of the step alive."""

    def __init__(self, draft: Draft, functions: RunningFunctions) -> None:
        self.draft = draft
        self.functions = functions
        self.leaf_tensors: dict[str, OurRef] = {}
        self._known: dict[int, tuple[OurRef, Ref]] = {}
        self._fixed: dict[int, tuple[OurRef, int, Ref]] = {}
        self._producer: dict[Ref, FunctionCall | None] = {}
        self._storages: dict[int, Storage] = {}

    def clear(self) -> None:
        self._known.clear()
        self._fixed.clear()
        self._storages.clear()

    # -- memory ------------------------------------------------------------------------------------

    def seen(self, tensor: Tensor) -> Storage | None:
        """Its memory, if the tape has met it."""
        return self._storages.get(local(tensor).untyped_storage()._cdata)

    def storage(self, tensor: Tensor, *, made: bool = False, depends_on: int = 0) -> Storage:
        """Its memory. The first sight decides what it is: made by the step, parameter, data, constant."""
        tensor = local(tensor)
        try:
            memory = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError) as error:
            raise ReplayError(
                f"the step uses tensors without memory of their own: {error}"
            ) from error
        stranger = foreign = None
        found = self._storages.get(memory._cdata)
        if found is not None:
            if not found.made and found.leaf is None and is_trainable_leaf(tensor):
                found.depends_on |= PARAMETER
            elif tensor.requires_grad and not found.depends_on & PARAMETER:
                if isinstance(tensor, torch.nn.Parameter) and found.made:
                    self.draft.gap("the model was built in the step")
                self._made_out_of_sight(tensor, found)
                if is_trainable_leaf(tensor):
                    found.depends_on |= DATA  # the step asks for a slope there
            return found
        if not made:
            if is_trainable_leaf(tensor):
                depends_on = PARAMETER
            elif (foreign := self.functions.maker(tensor)) is not None:
                depends_on, made = PARAMETER | DATA, True
            elif tensor.requires_grad and tensor.grad_fn is not None:
                stranger = f"a tensor of shape {tuple(tensor.shape)} brings a gradient history from outside the taped step"
            elif not isinstance(tensor, torch.nn.Parameter) and not self.draft.names.is_buffer(
                tensor
            ):
                depends_on = DATA if nbytes(tensor) <= MAX_DATA_BYTES else 0
        storage = Storage(len(self._storages), StorageWeakRef(memory), depends_on, made)
        storage.stranger, storage.foreign = stranger, foreign
        self._storages[memory._cdata] = storage
        return storage

    def _made_out_of_sight(self, tensor: Tensor, storage: Storage) -> None:
        """It has a gradient, but nothing that torch saw of its Function depends on a parameter: a kernel filled it."""
        storage.foreign = self.functions.maker(tensor)
        if storage.foreign is not None:
            storage.depends_on |= PARAMETER | DATA

    def keep_base(self, tensor: Tensor, storage: Storage) -> None:
        """The step is about to write into a constant: all of its memory is copied as it is now."""
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        flat = torch.as_strided(tensor.detach(), (elements,), (1,), 0)
        ref = self.draft.new_ref(Geometry(storage.number, (elements,), (1,), 0))
        self._producer[ref] = None
        self.draft.constants[ref] = self.draft.copy(flat)
        storage.base = ref

    def received(self, tensor: Tensor, *, as_data: bool) -> None:
        """Other ranks' values have come into its memory, without a trace in its version."""
        storage = self.storage(tensor)
        memory = local(tensor).untyped_storage()._cdata
        for key, (weak, _, _) in list(self._fixed.items()):
            other = weak()
            if other is None or local(other).untyped_storage()._cdata == memory:
                del self._fixed[key]
        if as_data and not storage.depends_on and storage.leaf is None:
            storage.depends_on, storage.made = DATA, False

    # -- Refs --------------------------------------------------------------------------------------

    def ref(self, tensor: Tensor, user: FunctionCall | None) -> Ref:
        """The Ref of an argument: known, a parameter, an alias of something known, or a constant to copy."""
        storage = self.storage(tensor)
        known = self._lookup(tensor)
        if known is not None:
            producer = self._producer.get(known)
            if producer is not None and producer is not user:
                self.functions.mark_output(tensor, known, producer)
            return known
        if is_trainable_leaf(tensor) and not storage.made:
            return self._new_leaf(tensor, storage)
        if storage.foreign is not None and storage.last is None:
            return self._foreign_output(tensor, storage, storage.foreign)
        if storage.base is not None:
            return self._alias(tensor, storage, storage.base, user)
        ours = storage.made or storage.leaf is not None
        if storage.depends_on and ours and storage.last is not None:
            return self._alias(tensor, storage, storage.last, user)
        return self._constant(tensor, storage)

    def output(self, tensor: Tensor, depends_on: int, function: FunctionCall | None) -> Ref:
        """The Ref of what an op gave: an in-place function gives a tensor that is known."""
        known = self._lookup(tensor)
        if known is not None:
            return known
        return self._new_ref(
            tensor, self.storage(tensor, made=True, depends_on=depends_on), function
        )

    def adopt(self, result: Any, twin: Any) -> float:
        """The tensors of `result` get the Refs of those of `twin`, one by one. Their largest relative difference."""
        theirs, ours = list(tensors_in(result)), list(tensors_in(twin))
        if [(t.shape, t.dtype) for t in theirs] != [(t.shape, t.dtype) for t in ours]:
            raise ReplayError(
                "the compiled code gives other tensors than the same code without compilation"
            )
        largest = 0.0
        for real, copy in zip(theirs, ours):
            if real is copy or self._lookup(real) is not None:
                continue
            ref = self.ref(copy, None)
            storage = self.storage(real, made=True, depends_on=self.storage(copy).depends_on)
            if local(real).stride() != local(copy).stride():
                anchor, ref = ref, self._new_ref(real, storage, None)
                self.draft.append(_same_layout(anchor, ref, local(real), storage.depends_on))
            else:
                storage.number = self.storage(copy).number
                storage.last = ref
                self._known[id(real)] = (OurRef(real), ref)
            if torch.is_floating_point(real) and real.numel():
                a, b = local(real).detach().double(), local(copy).detach().double()
                scale = float(b.norm())
                largest = max(largest, float((a - b).norm()) / scale if scale else 0.0)
        return largest

    def _lookup(self, tensor: Tensor) -> Ref | None:
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def _new_ref(self, tensor: Tensor, storage: Storage, function: FunctionCall | None) -> Ref:
        ref = self.draft.new_ref(Geometry.of(local(tensor), storage.number))
        self._producer[ref] = function
        self._known[id(tensor)] = (OurRef(tensor), ref)
        storage.last = ref
        return ref

    def _new_leaf(self, tensor: Tensor, storage: Storage) -> Ref:
        names = self.draft.names
        passing = not isinstance(tensor, Parameter) and not names.has(tensor)
        name = names.of(tensor)
        ref = self._new_ref(tensor, storage, None)
        hooked = bool(getattr(tensor, "_backward_hooks", None))
        self.draft.leaves[name] = Leaf(ref, self.draft.copy(tensor), hooked, passing)
        self.leaf_tensors[name] = OurRef(tensor)
        storage.leaf = storage.leaf or ref
        storage.depends_on |= PARAMETER
        return ref

    def _constant(self, tensor: Tensor, storage: Storage) -> Ref:
        now = version(tensor)
        fixed = self._fixed.get(id(tensor))
        if fixed is not None and fixed[0]() is tensor and fixed[1] == now:
            return fixed[2]
        draft = self.draft
        ref = draft.new_ref(Geometry.of(local(tensor), -1 - len(draft.geometry)))
        self._producer[ref] = None
        draft.constants[ref] = draft.copy(tensor)
        self._fixed[id(tensor)] = (OurRef(tensor), now, ref)
        if storage.depends_on & DATA and not storage.made:
            draft.data.append(ref)
        if storage.stranger is not None and tensor.requires_grad:  # detached, it is a value
            draft.strangers[ref] = storage.stranger
        return ref

    def _alias(
        self, tensor: Tensor, storage: Storage, anchor: Ref, user: FunctionCall | None
    ) -> Ref:
        """A tensor object the tape has not seen, in memory that it knows: a view of it."""
        geometry = Geometry.of(tensor, storage.number)
        ref = self._new_ref(tensor, storage, user)
        func: Any = torch.as_strided
        args: tuple[Any, ...] = (anchor, geometry.size, geometry.stride, geometry.offset)
        if self.draft.geometry[anchor.index] == geometry:
            func, args = _same, (anchor,)
        self.draft.append(
            Op(
                number=0,
                name="alias",
                func=func,
                args=args,
                kwargs={},
                inputs=(anchor,),
                outputs=(ref,),
                depends_on=storage.depends_on,
                function=user,
                synthetic=True,
            )
        )
        producer = self._producer.get(anchor)
        if producer is not None:
            self.functions.mark_output(tensor, anchor, producer)
        return ref

    def _foreign_output(self, tensor: Tensor, storage: Storage, call: FunctionCall) -> Ref:
        """Only the whole Function can make it again: it is replayed as one op."""
        ref = self._new_ref(tensor, storage, call)
        call.escapes.append("its result was made out of torch's sight")
        call.differentiable = True
        call.outputs[ref] = tensor.output_nr
        inputs = tuple(dict.fromkeys(refs_in((call.args, call.kwargs))))
        self.draft.append(
            Op(
                number=0,
                name=call.name,
                func=_out_of_sight,
                args=inputs,
                kwargs={},
                inputs=inputs,
                outputs=(ref,),
                depends_on=storage.depends_on,
                function=call,
                synthetic=True,
                line=call.line,
                module=call.module,
            )
        )
        return ref


def version(tensor: Tensor) -> int:
    """Grows with each write to the tensor."""
    return -1 if tensor.is_inference() else tensor._version


def _same_layout(anchor: Ref, ref: Ref, like: Tensor, depends_on: int) -> Op:
    """The same values, in the order in memory that views taken of the compiled result rely on."""
    size, stride = tuple(like.shape), like.stride()

    def laid_out(tensor: Tensor) -> Tensor:
        made = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor)

    return Op(
        number=0,
        name="clone",
        func=laid_out,
        args=(anchor,),
        kwargs={},
        inputs=(anchor,),
        outputs=(ref,),
        depends_on=depends_on,
        synthetic=True,
    )


def _same(tensor: Tensor) -> Tensor:
    """Another object for the same tensor."""
    return tensor


def _out_of_sight(*tensors: Tensor) -> Tensor:
    raise ReplayError("a custom Function computes outside of PyTorch")
