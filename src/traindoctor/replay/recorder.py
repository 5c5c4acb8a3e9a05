"""Writes down each torch function of one training step, so that the step can be run again.

    recorder = StepRecorder(step, names)
    recorder.start()            # before the first training forward of the step
    recorder.on(event)          # backward passes, scalars read
    tape = recorder.finish()    # all gradients of the step are there, nothing is updated yet

It listens on after `finish()` (scripts print their loss after the optimizer's step) until `close()`, or until
the next training forward or backward pass; `done` is True then. It keeps no intermediate of the step alive: what
a replay cannot recompute (parameters, data, constants, random states) is copied, within a stated bound.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from traindoctor.errors import ReplayError
from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    Event,
    ForwardBegin,
    ScalarRead,
    StepBegin,
    StepEnd,
)
from traindoctor.replay import frames, quiet
from traindoctor.replay.names import Names, is_trainable_leaf, local
from traindoctor.replay.ops import (
    DATA,
    PARAMETER,
    FunctionCall,
    Geometry,
    Leaf,
    Op,
    Read,
    Ref,
    Root,
    nbytes,
    op_name,
    refs_in,
    replace,
    tensors_in,
)
from traindoctor.replay.tape import StepTape

# Copies a tape may hold: parameters, their gradients, data and constants. Above it no tape is made.
MAX_BYTES = 3 * 2**30
# A tensor of the data larger than this is a data set, not a batch: what is read from it is the batch.
MAX_DATA_BYTES = 64 * 2**20

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
# Their integer argument is kept: tokens of an embedding, targets of a loss, an index.
SELECTING = frozenset(
    "embedding embedding_bag gather take_along_dim __getitem__ index_select one_hot take".split()
)


# Their target is kept, whatever its dtype.
TARGETED = frozenset(
    "cross_entropy nll_loss binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss "
    "smooth_l1_loss huber_loss kl_div".split()
)


@dataclass(eq=False, slots=True)
class Storage:
    """What is known of one piece of memory that tensors share."""

    number: int
    weak: StorageWeakRef
    hangs_on: int
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


class StepRecorder(TorchFunctionMode):
    """Tapes one step. A fault of its own never reaches the run: it stops recording, and `finish` refuses."""

    def __init__(self, step: int, names: Names, *, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self.step = step
        self.names = names
        self.max_bytes = max_bytes
        self.bytes = 0
        self.failure: str | None = None
        self.done = False
        self._tape: StepTape | None = None
        self._entered = False
        self._paused = 0
        self._in_step = False
        self._ops: list[Op] = []
        self._refs: list[Geometry] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Ref]] = {}
        self._fixed: dict[int, tuple[weakref.ref[Tensor], int, Ref]] = {}
        self._producer: dict[Ref, FunctionCall | None] = {}
        self._storages: dict[int, Storage] = {}
        self._leaves: dict[str, Leaf] = {}
        self._leaf_tensors: dict[str, weakref.ref[Tensor]] = {}
        self._constants: dict[Ref, Tensor] = {}
        self._data: list[Ref] = []
        self._roots: list[Root] = []
        self._reads: list[Read] = []
        self._gaps: list[str] = []
        self._strangers: dict[Ref, str] = {}
        self._escapes: list[tuple[str, str | None, str | None]] = []
        self._segment = 0
        self._before: dict[str, Tensor | None] | None = None
        self._given: dict[str, Tensor | None] = {}
        self._calls: list[tuple[Any, FunctionCall]] = []
        self._num_calls = 0
        self._last_calls: dict[type, FunctionCall] = {}

    # -- the life of a recording ------------------------------------------------------------------

    def start(self) -> None:
        """Begins to write down torch functions, in the calling thread."""
        assert not self.done, "a recorder tapes one step"
        self.__enter__()
        self._entered = True

    def on(self, event: Event) -> None:
        """Backward passes and reads; everything else is of no interest and costs nothing."""
        if self.done:
            self.close()
            return
        try:
            with quiet.quiet(), torch.no_grad():
                self._on(event)
        except Exception as error:
            self._fail(error)

    def _on(self, event: Event) -> None:
        if isinstance(event, ScalarRead):
            self._read(event.tensor, event.value)
        elif isinstance(event, StepBegin | StepEnd):
            self._in_step = isinstance(event, StepBegin)
        elif self._tape is not None:
            if isinstance(event, BackwardBegin) or (
                isinstance(event, ForwardBegin) and event.wants_grad
            ):
                self.close()
        elif isinstance(event, BackwardBegin):
            if self._before is None:
                self._before = self._gradients()
            for number, root in enumerate(event.roots):
                given = event.gradients
                self._root(root, event.scale, given[number] if given else None)
            self._paused += 1
        elif isinstance(event, BackwardEnd):
            self._paused = max(0, self._paused - 1)
            self._segment += 1
            if event.results is None:
                self._given = self._gradients()
            else:
                self._add_results(event.inputs, event.results)

    def finish(self) -> StepTape:
        """The tape of the step. Call it when the step's gradients are complete and nothing is updated yet."""
        if self.failure is None and self._tape is None:
            try:
                with quiet.quiet(), torch.no_grad():
                    self._tape = self._build()
            except Exception as error:
                self._fail(error)
        if self.failure is not None:
            self.close()
            raise ReplayError(self.failure)
        assert self._tape is not None
        return self._tape

    def close(self) -> None:
        """Stops listening. May be called at any time, more than once."""
        self.done = True
        self._calls.clear()
        self._known.clear()
        self._fixed.clear()
        self._storages.clear()
        # Inside a torch function the mode is off the stack for a moment: the next call of close finds it.
        if self._entered and _take_from_stack(self):
            self._entered = False

    def _fail(self, error: Exception) -> None:
        if isinstance(error, ReplayError):
            self.failure = str(error)
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.failure = f"the tape broke: {type(error).__name__}: {error} ({last.name})"
        self.close()

    # -- one torch function -----------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or self._in_step or self.done or quiet.active():
            return func(*args, **kwargs)
        name = op_name(func)
        if name in IGNORED or torch.is_inference_mode_enabled() or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if name == "grad":
            return self._gradient(func(*args, **kwargs))
        pending = None
        try:
            if self._tape is not None and self._next_step_begins(name, args, kwargs):
                self.close()
                return func(*args, **kwargs)
            pending = self._before_call(name, args, kwargs)
        except Exception as error:
            self._fail(error)
        result = func(*args, **kwargs)
        if pending is not None:
            try:
                self._after_call(pending, name, func, args, kwargs, result)
            except Exception as error:
                self._fail(error)
        return result

    def _next_step_begins(self, name: str, args: Any, kwargs: Any) -> bool:
        """After the step a parameter is used with gradients on: scripts without modules give no other sign."""
        if not torch.is_grad_enabled() or _target(name, args, kwargs) is not None:
            return False
        return any(is_trainable_leaf(tensor) for tensor in tensors_in((args, kwargs)))

    def _gradient(self, gradient: Any) -> Any:
        """`.grad` is no data: clipping and hand-written optimizers are not worth a tape."""
        if isinstance(gradient, Tensor) and not gradient.is_sparse:
            try:
                self._storage(gradient, made=True)
            except Exception as error:
                self._fail(error)
        return gradient

    def _before_call(self, name: str, args: Any, kwargs: Any) -> _Pending:
        tensors = list(tensors_in((args, kwargs)))
        hangs_on = 0
        for tensor in tensors:
            hangs_on |= self._storage(tensor).hangs_on
        if name in SHAPE_ONLY:
            hangs_on = 0
        pending = _Pending(tensors, hangs_on)
        if not hangs_on:
            return pending
        place = frames.here(3)
        pending.place = place
        pending.function = self._function(place)
        if name in ESCAPES:
            return pending
        pending.versions = [_version(t) for t in tensors]
        target = _target(name, args, kwargs)
        if target is not None:
            storage = self._storage(target)
            if storage.leaf is not None or is_trainable_leaf(target):
                pending.update = True  # a hand-written optimizer, never part of a loss
                return pending
            if storage.base is None and not (storage.made and storage.hangs_on):
                self._keep_base(target, storage)
        pending.args = replace(args, Tensor, lambda t: self._ref(t, pending.function))
        pending.kwargs = replace(kwargs, Tensor, lambda t: self._ref(t, pending.function))
        if any(word in name for word in RANDOM):
            pending.rng = _random_states(tensors)
        if name in SELECTING or name in TARGETED:
            pending.index = _selecting_index(name, args, kwargs)
        return pending

    def _after_call(
        self,
        pending: _Pending,
        name: str,
        func: Callable[..., Any],
        args: Any,
        kwargs: Any,
        result: Any,
    ) -> None:
        if pending.update:
            self._updated(pending.tensors[0])
            return
        outputs = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if pending.args is None:
            if pending.hangs_on & PARAMETER and name in ESCAPES:
                self._escaped(name, pending)
            for output in outputs:
                self._storage(output, made=True)
            return
        changed = any(
            _version(tensor) != version
            for tensor, version in zip(pending.tensors, pending.versions or ())
        )
        if not outputs and not changed:
            return  # a size, a number: `x[i] = y` has no result either, but it writes
        op = Op(
            number=len(self._ops),
            name=name,
            func=func,
            args=pending.args,
            kwargs=pending.kwargs,
            inputs=(),
            outputs=(),
            hangs_on=pending.hangs_on,
            function=pending.function,
            rng=pending.rng,
            index=pending.index,
        )
        self._place(op, pending.place)
        refs = [self._ref(t, pending.function) for t in pending.tensors]
        op.inputs = tuple(dict.fromkeys(refs))
        written = []
        for tensor, ref, version in zip(pending.tensors, refs, pending.versions or ()):
            storage = self._storage(tensor)
            if _version(tensor) != version and (storage.base is not None or storage.made):
                storage.hangs_on |= pending.hangs_on
                written.append(ref)
        op.writes = tuple(dict.fromkeys(written))
        op.outputs = tuple(self._output(t, pending) for t in outputs)
        op.number = len(self._ops)  # aliases of its arguments may have come before it
        self._ops.append(op)

    def _updated(self, target: Tensor) -> None:
        """A parameter was changed by hand. Before the first backward pass the new value is the step's."""
        if self._tape is not None:
            return
        storage = self._storage(target)
        for name, leaf in self._leaves.items():
            tensor = self._leaf_tensors[name]()
            if leaf.ref == storage.leaf and tensor is not None:
                if self._roots:
                    self._gap(f"{name} was changed between the step's backward passes")
                leaf.value.copy_(local(tensor).detach())

    def _output(self, tensor: Tensor, pending: _Pending) -> Ref:
        known = self._lookup(tensor)
        if known is not None:
            return known
        storage = self._storage(tensor, made=True, hangs_on=pending.hangs_on)
        return self._new_ref(tensor, storage, pending.function)

    def _place(self, op: Op, place: frames.Place | None) -> None:
        op.grad_enabled = torch.is_grad_enabled()
        op.autocast = _autocast_state()
        op.segment = self._segment
        if place is not None:
            op.line = place.line
            op.library_line = place.library_line
            op.module = None if place.module is None else self.names.of_module(place.module)

    def _escaped(self, name: str, pending: _Pending) -> None:
        place = pending.place
        line = place.line if place else None
        module = self.names.of_module(place.module) if place and place.module else None
        if pending.function is not None:
            pending.function.escapes.append(name)
        self._escapes.append((name, line, module))

    # -- tensors and their memory -----------------------------------------------------------------

    def _storage(self, tensor: Tensor, *, made: bool = False, hangs_on: int = 0) -> Storage:
        """The memory of a tensor. A first sight decides what it is: made by the step, parameter, data, constant."""
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
                found.hangs_on |= PARAMETER
            return found
        if not made:
            if is_trainable_leaf(tensor):
                hangs_on = PARAMETER
            elif (foreign := self._maker(tensor)) is not None:
                hangs_on, made = PARAMETER | DATA, True
            elif tensor.requires_grad and tensor.grad_fn is not None:
                stranger = f"a tensor of shape {tuple(tensor.shape)} brings a gradient history from outside the taped step"
            elif not isinstance(tensor, torch.nn.Parameter) and not self.names.is_buffer(tensor):
                hangs_on = DATA if nbytes(tensor) <= MAX_DATA_BYTES else 0
        storage = Storage(len(self._storages), StorageWeakRef(memory), hangs_on, made)
        storage.stranger, storage.foreign = stranger, foreign
        self._storages[memory._cdata] = storage
        return storage

    def _gap(self, reason: str) -> None:
        if reason not in self._gaps:
            self._gaps.append(reason)

    def _lookup(self, tensor: Tensor) -> Ref | None:
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def _new_ref(self, tensor: Tensor, storage: Storage, function: FunctionCall | None) -> Ref:
        ref = Ref(len(self._refs))
        self._refs.append(Geometry.of(local(tensor), storage.number))
        self._producer[ref] = function
        self._known[id(tensor)] = (weakref.ref(tensor), ref)
        storage.last = ref
        return ref

    def _ref(self, tensor: Tensor, user: FunctionCall | None) -> Ref:
        """The Ref of an argument: known, a parameter, an alias of something known, or a constant to copy."""
        storage = self._storage(tensor)
        known = self._lookup(tensor)
        if known is not None:
            return self._leave_function(tensor, known, user)
        if is_trainable_leaf(tensor) and not storage.made:
            return self._new_leaf(tensor, storage)
        if storage.foreign is not None and storage.last is None:
            return self._foreign_output(tensor, storage, storage.foreign)
        if storage.base is not None:
            return self._alias(tensor, storage, storage.base, user)
        if (
            storage.hangs_on
            and (storage.made or storage.leaf is not None)
            and storage.last is not None
        ):
            return self._alias(tensor, storage, storage.last, user)
        return self._constant(tensor, storage)

    def _maker(self, tensor: Tensor) -> FunctionCall | None:
        """The Function that made a tensor which no torch function has made."""
        cls = getattr(type(tensor.grad_fn), "_forward_cls", None)
        return self._last_calls.get(cls) if cls is not None else None

    def _foreign_output(self, tensor: Tensor, storage: Storage, call: FunctionCall) -> Ref:
        """Only the whole Function can make it again: it is replayed as one op."""
        ref = self._new_ref(tensor, storage, call)
        call.escapes.append("its result was made out of torch's sight")
        call.differentiable = True
        call.outputs[ref] = tensor.output_nr
        inputs = tuple(dict.fromkeys(refs_in((call.args, call.kwargs))))
        op = Op(
            number=len(self._ops),
            name=call.name,
            func=_out_of_sight,
            args=inputs,
            kwargs={},
            inputs=inputs,
            outputs=(ref,),
            hangs_on=storage.hangs_on,
            function=call,
            synthetic=True,
            line=call.line,
        )
        self._place(op, None)
        op.line = call.line
        self._ops.append(op)
        return ref

    def _new_leaf(self, tensor: Tensor, storage: Storage) -> Ref:
        name = self.names.of(tensor)
        ref = self._new_ref(tensor, storage, None)
        hooked = bool(getattr(tensor, "_backward_hooks", None))
        self._leaves[name] = Leaf(ref, self._copy(tensor), hooked)
        self._leaf_tensors[name] = weakref.ref(tensor)
        storage.leaf = storage.leaf or ref
        storage.hangs_on |= PARAMETER
        return ref

    def _constant(self, tensor: Tensor, storage: Storage) -> Ref:
        version = _version(tensor)
        fixed = self._fixed.get(id(tensor))
        if fixed is not None and fixed[0]() is tensor and fixed[1] == version:
            return fixed[2]
        ref = Ref(len(self._refs))
        self._refs.append(Geometry.of(local(tensor), -1 - len(self._refs)))
        self._producer[ref] = None
        self._constants[ref] = self._copy(tensor)
        self._fixed[id(tensor)] = (weakref.ref(tensor), version, ref)
        if storage.hangs_on & DATA and not storage.made:
            self._data.append(ref)
        if storage.stranger is not None:
            self._strangers[ref] = storage.stranger
        return ref

    def _keep_base(self, tensor: Tensor, storage: Storage) -> None:
        """The step is about to write into a constant: all of its memory is copied as it is now."""
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        flat = torch.as_strided(tensor.detach(), (elements,), (1,), 0)
        ref = Ref(len(self._refs))
        self._refs.append(Geometry(storage.number, (elements,), (1,), 0))
        self._producer[ref] = None
        self._constants[ref] = self._copy(flat)
        storage.base = ref

    def _alias(
        self, tensor: Tensor, storage: Storage, anchor: Ref, user: FunctionCall | None
    ) -> Ref:
        """A tensor object the tape has not seen, in memory that it knows: a view of it."""
        geometry = Geometry.of(tensor, storage.number)
        ref = self._new_ref(tensor, storage, user)
        same = self._refs[anchor.index]
        if (same.size, same.stride, same.offset) == (
            geometry.size,
            geometry.stride,
            geometry.offset,
        ):
            func, args = _same, (anchor,)
        else:
            func = torch.as_strided
            args = (anchor, geometry.size, geometry.stride, geometry.offset)
        op = Op(
            number=len(self._ops),
            name="alias",
            func=func,
            args=args,
            kwargs={},
            inputs=(anchor,),
            outputs=(ref,),
            hangs_on=storage.hangs_on,
            function=user,
            synthetic=True,
        )
        self._place(op, None)
        op.autocast = None
        self._ops.append(op)
        producer = self._producer.get(anchor)
        if producer is not None:
            self._mark_output(tensor, anchor, producer)
        return ref

    def _leave_function(self, tensor: Tensor, ref: Ref, user: FunctionCall | None) -> Ref:
        """Seen outside the Function it was made in: note which output of it this is."""
        producer = self._producer.get(ref)
        if producer is not None and producer is not user:
            self._mark_output(tensor, ref, producer)
        return ref

    def _mark_output(self, tensor: Tensor, ref: Ref, producer: FunctionCall) -> None:
        history = tensor.grad_fn
        if history is None:
            return
        call: FunctionCall | None = producer
        while call is not None:
            call.differentiable = True
            if getattr(type(history), "_forward_cls", None) is call.cls:
                call.outputs[ref] = tensor.output_nr
            call = call.parent

    def _copy(self, tensor: Tensor) -> Tensor:
        tensor = local(tensor).detach()
        strided = tensor.layout == torch.strided
        if strided and tensor.numel() and not tensor.untyped_storage().nbytes():
            # FSDP2 frees and refills the memory of gathered weights: reading it now would crash.
            raise ReplayError(
                f"step {self.step} uses tensors whose memory is freed (sharded weights)"
            )
        self.bytes += nbytes(tensor)
        if self.bytes > self.max_bytes:
            raise ReplayError(
                f"the tape of step {self.step} would hold more than {self.max_bytes / 2**20:.0f} MiB of copies"
            )
        return tensor.clone(memory_format=torch.preserve_format)

    def _function(self, place: frames.Place) -> FunctionCall | None:
        """The innermost running autograd.Function, outer ones as its parents."""
        running = place.functions or ()
        alive = set(map(id, running))
        # A finished frame is held until here, so that a new call cannot have its id.
        self._calls = [(frame, call) for frame, call in self._calls if id(frame) in alive]
        known = {id(frame): call for frame, call in self._calls}
        parent = None
        for frame in reversed(running):
            call = known.get(id(frame))
            if call is None:
                cls, args, kwargs = frames.arguments(frame)
                self._num_calls += 1
                call = FunctionCall(cls, self._num_calls, (), {}, place.line, parent=parent)
                call.args = replace(args, Tensor, lambda t, outer=parent: self._ref(t, outer))
                call.kwargs = replace(kwargs, Tensor, lambda t, outer=parent: self._ref(t, outer))
                caller = frame.f_back
                while caller is not None and frames.kind_of(caller.f_code.co_filename) == "torch":
                    caller = caller.f_back
                if caller is not None:
                    call.line = frames.name_line(caller)
                self._calls.append((frame, call))
                self._last_calls[cls] = call
            parent = call
        return parent

    # -- gradients, roots, reads ------------------------------------------------------------------

    def _trainable(self) -> dict[str, Tensor]:
        found = {name: p for name, p in self.names.parameters() if is_trainable_leaf(p)}
        for name, weak in self._leaf_tensors.items():
            tensor = weak()
            if tensor is not None:
                found.setdefault(name, tensor)
        return found

    def _gradients(self) -> dict[str, Tensor | None]:
        """Copies of .grad; the copies of the last backward pass are overwritten."""
        made: dict[str, Tensor | None] = {}
        for name, parameter in self._trainable().items():
            gradient = parameter.grad
            if gradient is None:
                made[name] = None
                continue
            gradient = local(gradient).detach()
            old = self._given.get(name)
            if old is not None and old.shape == gradient.shape and old.dtype == gradient.dtype:
                made[name] = old.copy_(gradient)
            else:
                made[name] = self._copy(gradient.to_dense() if gradient.is_sparse else gradient)
        return made

    def _add_results(
        self, inputs: Sequence[Tensor] | None, results: Sequence[Tensor | None]
    ) -> None:
        """What torch.autograd.grad gave back stands for .grad."""
        for tensor, gradient in zip(inputs or (), results):
            if not is_trainable_leaf(tensor) or gradient is None:
                continue
            name = self.names.of(tensor)
            old = self._given.get(name)
            self._given[name] = self._copy(gradient) if old is None else old.add_(gradient)

    def _root(self, tensor: Tensor, scale: float, gradient: Tensor | None) -> None:
        storage = self._storage(tensor)
        ref = self._ref(tensor, None) if storage.hangs_on else None
        value = tensor.detach()
        if gradient is None and value.numel() != 1:
            self._gap("backward was called on a tensor that is no scalar")
        total = value.sum() if gradient is None else (value * gradient).sum()
        kept = None if gradient is None else self._copy(gradient)
        self._roots.append(Root(ref, float(total), float(scale), kept))

    def _read(self, tensor: Tensor, value: float) -> None:
        if tensor.numel() != 1 or not self._storages:
            return
        found = self._storages.get(local(tensor).untyped_storage()._cdata)
        if found is None or not found.hangs_on & PARAMETER:
            return
        read = Read(self._ref(tensor, None), float(value))
        reads = self._reads if self._tape is None else self._tape.reads
        if all(old.ref != read.ref for old in reads):
            reads.append(read)

    def _build(self) -> StepTape:
        fresh: dict[str, Tensor | None] = {}
        before = self._before or {}
        for name, gradient in self._given.items():
            old = before.get(name)
            dirty = gradient is not None and old is not None and bool(old.any())
            fresh[name] = gradient - old if dirty else gradient  # type: ignore[operator]
        tape = StepTape(
            step=self.step,
            ops=self._ops,
            geometry=self._refs,
            parameters=self._leaves,
            constants=self._constants,
            data=self._data,
            roots=self._roots,
            given=self._given,
            fresh=fresh,
            reads=self._reads,
            gaps=self._gaps,
            escapes=self._escapes,
            bytes=self.bytes,
            world_size=_world_size(),
            arrived=self._arrived(),
        )
        roots = [root.ref for root in self._roots if root.ref is not None]
        used = {ref for op in tape.needed(roots) for ref in op.inputs}
        for ref, reason in self._strangers.items():
            if ref in used:
                self._gap(reason)
        return tape

    def _arrived(self) -> tuple[float, float] | None:
        """Factor and cosine between the gradients that lie in .grad now and those of the last backward pass."""
        dot = now = then = 0.0
        for name, parameter in self._trainable().items():
            given = self._given.get(name)
            if given is None or parameter.grad is None or parameter.grad.is_sparse:
                continue
            gradient = local(parameter.grad).detach().double()
            if gradient.shape != given.shape:
                continue
            reference = given.double()
            dot += float((gradient * reference).sum())
            now += float(gradient.square().sum())
            then += float(reference.square().sum())
        if not now or not then:
            return None
        return dot / then, dot / (now * then) ** 0.5


@dataclass(slots=True)
class _Pending:
    """What is known of a call before it happens."""

    tensors: list[Tensor]
    hangs_on: int
    args: Any = None
    kwargs: Any = None
    versions: list[int] | None = None
    place: frames.Place | None = None
    function: FunctionCall | None = None
    rng: tuple[tuple[str, Tensor], ...] = ()
    index: Tensor | None = None
    update: bool = False


def _world_size() -> int:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def _same(tensor: Tensor) -> Tensor:
    """Another object for the same tensor."""
    return tensor


def _out_of_sight(*tensors: Tensor) -> Tensor:
    raise ReplayError("a Function computes out of torch's sight")


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _target(name: str, args: Any, kwargs: Any) -> Tensor | None:
    """The tensor that the function is going to write to, by the conventions of torch's names."""
    out = kwargs.get("out")
    if isinstance(out, Tensor):
        return out
    in_place = name.endswith("_") and not name.endswith("__")
    operator = name.startswith("__i") and name not in ("__index__", "__invert__", "__int__")
    if (in_place or operator or name == "__setitem__") and args and isinstance(args[0], Tensor):
        return args[0]
    return None


def _selecting_index(name: str, args: Any, kwargs: Any) -> Tensor | None:
    if name in TARGETED:
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        return target.detach().clone() if isinstance(target, Tensor) else None
    integers = [
        tensor
        for tensor in tensors_in((args, kwargs))
        if not torch.is_floating_point(tensor) and tensor.dtype != torch.bool
    ]
    # x[rows, targets]: the last index is the one that picks a class.
    return integers[-1].detach().clone() if integers else None


def _random_states(tensors: Sequence[Tensor]) -> tuple[tuple[str, Tensor], ...]:
    states = [("cpu", torch.get_rng_state())]
    for device in {str(t.device) for t in tensors if t.is_cuda}:
        states.append((device, torch.cuda.get_rng_state(device)))
    return tuple(states)


def _autocast_state() -> tuple[Any, ...] | None:
    """None when off, which is the common case."""
    on = tuple(
        (device, torch.get_autocast_dtype(device))
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
    return (on, torch.is_autocast_cache_enabled()) if on else None


def _take_from_stack(mode: TorchFunctionMode) -> bool:
    """Leaves the mode stack in whatever order modes were entered: a device context may lie on top."""
    above, found = [], False
    while torch._C._len_torch_function_stack() and not found:
        top = _pop_mode()
        found = top is mode
        if not found:
            above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return found
