"""A proof by reading: does `step` of an unknown optimizer name anything outside its own object?

The byte code of `step` and of all that it calls may load constants, torch's pure functions, `math`, and the methods and
attributes of its own object. Everything it can reach is then in the object, and a deep copy of the object is closed:
stepping it changes nothing else. What is not understood is refused, with the reason.
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from traindoctor.experiment import pure_names as pure
from traindoctor.experiment.settings import PLAIN
from traindoctor.ground.torch_code import is_torchs, is_untouched, layers, under_hooks

# Byte code differs between versions: these were read and tested.
VERSIONS = ((3, 11), (3, 12))
# Instructions that move values, compute, branch and call: they reach nothing new.
HARMLESS = tuple(
    """BINARY_ BUILD_ CALL CHECK_EXC CLEANUP_THROW COMPARE_ CONTAINS_ COPY DELETE_FAST DELETE_SUBSCR DICT_ END_FOR END_SEND
    FORMAT_ FOR_ITER GET_ITER GET_LEN GET_YIELD IS_OP JUMP_ LIST_ LOAD_ASSERTION_ERROR LOAD_CONST LOAD_FAST MAKE_ MAP_ADD
    POP_ PUSH_EXC RAISE_ RERAISE RETURN_ SEND SET_ADD SET_UPDATE STORE_FAST STORE_SLICE STORE_SUBSCR SWAP UNARY_ UNPACK_
    BEFORE_WITH WITH_EXCEPT_START YIELD_VALUE""".split()
)
# They stand between the others and mean nothing to a reader.
FILLERS = frozenset("CACHE EXTENDED_ARG KW_NAMES NOP PRECALL PUSH_NULL RESUME".split())
ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
SPOKEN = {"IMPORT_NAME": "imports", "STORE_GLOBAL": "writes the global", "DELETE_ATTR": "deletes"}
# Special methods and names that no step and no copy of ours calls. Others could run unseen.
NOT_CALLED = frozenset(
    """__init__ __getstate__ __setstate__ __reduce__ __reduce_ex__ __doc__ __module__ __qualname__ __annotations__
    __dict__ __weakref__ __parameters__ __orig_bases__ __abstractmethods__""".split()
)
GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.set_grad_enabled)
# Names by which a method changes weights.
WRITES = frozenset(
    ("step", "data", *(f"_foreach_{op}_" for op in pure.FOREACH)),
) | {name for name in pure.TENSOR if name.endswith("_")}


class Open(Exception):
    """Why a copy of the optimizer would not be closed, in words for the user."""


def read_step(kind: type[Optimizer], attributes: set[str]) -> None:
    """Raises Open where `kind.step` reaches something outside an object that has these attributes."""
    if sys.version_info[:2] not in VERSIONS:
        version = ".".join(map(str, sys.version_info[:2]))
        raise Open(f"its code cannot be read under Python {version}")
    reader = _Reader(kind, attributes)
    reader.look_at_class()
    reader.function(kind.step, f"{kind.__name__}.step", of_self=True)
    reader.look_at_rest()


class _Reader:
    def __init__(self, kind: type[Optimizer], attributes: set[str]) -> None:
        self.kind = kind
        self.attributes = attributes
        self.own = [c for c in kind.__mro__ if c is not object and c is not Optimizer]
        self.written = [c for c in self.own if not c.__module__.startswith("torch.optim")]
        """Classes of the script or of a library; the others are torch's."""
        self.seen: dict[int, Any] = {}
        self.where = ""
        self.shared = False
        """A class or a function was loaded as a value: who sets an attribute of a local may set one of it."""
        self.sets_on_locals = False

    def refuse(self, reason: str) -> Open:
        return Open(f"{self.where} {reason}")

    # -- the class -------------------------------------------------------------------------------------

    def look_at_class(self) -> None:
        if type(self.kind) is not type:
            raise Open(f"{self.kind.__name__} has a metaclass")
        for one in self.written:
            for name, value in vars(one).items():
                special = name.startswith("__") and name.endswith("__")
                if special and name not in NOT_CALLED and not (name == "__slots__" and not value):
                    raise Open(f"{one.__name__} defines {name}")

    def look_at_rest(self) -> None:
        """A method that `step` does not call but that writes weights (`first_step`, `eval`) is half of the rule."""
        for one in self.written:
            for name, value in vars(one).items():
                if name.startswith("__") or hasattr(Optimizer, name) or id(value) in self.seen:
                    continue
                *_, function = layers(_unbound(value))
                if isinstance(function, types.FunctionType) and id(function) not in self.seen:
                    names = {n for code in _nested(function.__code__) for n in code.co_names}
                    if names & WRITES:
                        raise Open(f"{one.__name__} changes weights outside of step, in {name}")

    # -- functions -------------------------------------------------------------------------------------

    def function(self, value: Any, where: str, *, of_self: bool) -> None:
        """`of_self`: its first argument is the optimizer."""
        value = under_hooks(value)
        if not isinstance(value, types.FunctionType):
            raise Open(f"{where} is a {type(value).__name__}, which cannot be read")
        if id(value) in self.seen:
            return
        self.seen[id(value)] = value
        outer, self.where = self.where, where
        if is_torchs(value):
            self._torchs(value, of_self)
        else:
            self._written(value, of_self)
        self.where = outer

    def _torchs(self, value: types.FunctionType, of_self: bool) -> None:
        """Trusted, but for the methods that a class of the script puts in the place of torch's."""
        home = value.__globals__["__name__"]
        # Once its compiler is loaded, torch wraps methods of its optimizers so that it leaves them alone.
        torchs = ("torch.optim", "torch._dynamo.eval_frame")
        if not home.startswith(torchs) and not _is_grad_mode(value):
            raise self.refuse(f"is wrapped by {home}")
        for cell in value.__closure__ or ():
            if isinstance(cell.cell_contents, types.FunctionType):
                self.function(cell.cell_contents, self.where, of_self=of_self)
        for name in {n for code in _nested(value.__code__) for n in code.co_names}:
            for one in self.written:
                if name in vars(one):
                    self._member(vars(one)[name], name)

    def _written(self, value: types.FunctionType, of_self: bool) -> None:
        if vars(value).keys() - {"__wrapped__", "hooked"}:
            raise self.refuse("keeps values on the function itself")
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            self._value(default, "a default argument", called=False)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            if name != "__class__":
                self._value(cell.cell_contents, name, called=False)
        for code in _nested(value.__code__):
            first = code.co_varnames[0] if of_self and code is value.__code__ else None
            self._code(code, value.__globals__, first if code.co_argcount else None)

    def _code(self, code: types.CodeType, names: dict[str, Any], own: str | None) -> None:
        steps = [i for i in dis.get_instructions(code) if i.opname not in FILLERS]
        in_module = 0
        for place, one in enumerate(steps):
            name = one.opname
            before = steps[place - 1] if place else None
            if place < in_module:
                continue
            if name == "LOAD_GLOBAL":
                in_module = self._global(names, before, steps, place)
            elif name in ATTRIBUTE or name == "LOAD_SUPER_ATTR":
                self._attribute(one.argval)
            elif name == "STORE_ATTR":
                self._store(one.argval, _holder(steps, place), own)
            elif name in ("LOAD_DEREF", "LOAD_CLOSURE", "STORE_DEREF"):
                after = [i.opname for i in steps[place + 1 : place + 3]]
                if one.argval == "__class__" and after[-1] != "LOAD_SUPER_ATTR":
                    raise self.refuse("uses its class as a value")
                if name == "STORE_DEREF" and one.argval not in set(code.co_cellvars) - {own}:
                    raise self.refuse(f"writes to {one.argval} outside itself")
            elif not name.startswith(HARMLESS):
                what = f" {one.argval}" if isinstance(one.argval, str) else ""
                raise self.refuse(SPOKEN.get(name, f"does {name.lower()}") + what)
            elif own == one.argval and name.startswith(("STORE_", "DELETE_")):
                raise self.refuse(f"puts something else into {own}")

    # -- names -----------------------------------------------------------------------------------------

    def _global(self, names: dict[str, Any], before: Any, steps: list[Any], place: int) -> int:
        """Judges a name of the module; gives the place after the attributes that were judged with it."""
        one = steps[place]
        name = one.argval
        value = names.get(name, vars(builtins).get(name))
        if isinstance(value, types.ModuleType):
            return self._module(value, name, steps, place + 1)
        if name not in names:
            if name not in pure.BUILTINS or getattr(value, "__module__", "") != "builtins":
                raise self.refuse(f"calls {name}")
        elif isinstance(value, type) and value in self.kind.__mro__:
            # `super(Lion, self)`; elsewhere the class could be written to.
            if before is None or before.argval != "super":
                raise self.refuse(f"uses the class {name} as a value")
        else:
            self._value(value, name, called=_is_called(one))
        return place + 1

    def _module(self, module: types.ModuleType, spoken: str, steps: list[Any], place: int) -> int:
        """A module is only ever looked into: as a value it could be written to."""
        while steps[place].opname in ATTRIBUTE:
            one = steps[place]
            value = vars(module).get(one.argval)
            spoken = f"{spoken}.{one.argval}"
            if not isinstance(value, types.ModuleType):
                if type(value) not in PLAIN:
                    if not pure.is_pure(module.__name__, one.argval, value):
                        raise self.refuse(f"uses {spoken}, which may have side effects")
                    self._keep_apart(value, _is_called(one))
                return place + 1
            module, place = value, place + 1
        raise self.refuse(f"uses the module {spoken} as a value")

    def _value(self, value: Any, name: str, *, called: bool) -> None:
        """Something that a function finds around itself."""
        if type(value) in PLAIN:
            return
        if type(value) in (tuple, frozenset):
            for one in value:
                self._value(one, name, called=False)
        elif isinstance(value, types.FunctionType) and not is_torchs(value):
            self._keep_apart(value, called)
            self.function(value, name, of_self=False)
        elif pure.is_listed(value) or value is torch.nn.Parameter:
            self._keep_apart(value, called)
        else:
            raise self.refuse(f"uses {name}, a {type(value).__name__} outside itself")

    def _attribute(self, name: str) -> None:
        """Of the object itself, of a tensor or of a container: nothing else is ever reached."""
        if name.startswith("__"):
            raise self.refuse(f"uses {name}")
        tensors = _defined(torch.Tensor, name)
        if tensors is not None and (name not in pure.TENSOR or not is_untouched(tensors)):
            raise self.refuse(f"uses {name}, which may have side effects")
        found = [vars(c)[name] for c in self.own if name in vars(c)]
        for member in found:
            self._member(member, name)
        if name != "step" and _defined(Optimizer, name) is not None:
            raise self.refuse(f"calls {name}")
        known = found or tensors is not None or name in self.attributes or name in pure.CONTAINERS
        if not known and name != "step":
            raise self.refuse(f"uses {name}, which the optimizer does not have")

    def _member(self, member: Any, name: str) -> None:
        where = f"{self.kind.__name__}.{name}"
        if type(member) in PLAIN:
            return
        if isinstance(member, property):
            self.function(member.fget, where, of_self=True)
        elif isinstance(member, staticmethod):
            self.function(member.__func__, where, of_self=False)
        elif isinstance(member, types.FunctionType):
            self.function(member, where, of_self=True)
        else:
            raise self.refuse(f"uses {name}, a {type(member).__name__} of its class")

    def _store(self, name: str, target: str | None, own: str | None) -> None:
        if own is not None and target == own:
            if name.startswith("__") or any(name in vars(c) for c in self.kind.__mro__):
                raise self.refuse(f"sets {name}")
        elif target is None or name not in ("grad", "data"):
            raise self.refuse(f"sets {name} on another object")
        else:
            self.sets_on_locals = True
            self._keep_apart(None, called=True)

    def _keep_apart(self, value: Any, called: bool) -> None:
        """`p.grad = None` is fine, unless `p` may be a class or a function: everybody would see that."""
        if not called and isinstance(value, type | types.FunctionType):
            self.shared = True
        if self.shared and self.sets_on_locals:
            raise self.refuse("sets attributes of what may be a class or a function")


def _is_called(load: Any) -> bool:
    """Whether the compiler loads this in order to call it at once: it marks that in the lowest bit."""
    if load.opname == "LOAD_METHOD":
        return True
    marked = load.opname == "LOAD_GLOBAL" or sys.version_info >= (3, 12)
    return bool(marked and load.arg & 1)


def _holder(steps: list[Any], place: int) -> str | None:
    """The local variable whose attribute is set here: `x.a = ...`, or `x.a += ...`; None for all else."""
    name, load = steps[place].argval, steps[place - 1]
    if load.opname == "SWAP":  # x; COPY; its a; ...; the sum; SWAP; set a
        pairs = range(place - 2, 0, -1)
        copied = [i for i in pairs if steps[i].opname == "COPY" and steps[i + 1].argval == name]
        load = steps[copied[0] - 1] if copied else load
    return load.argval if load.opname in ("LOAD_FAST", "LOAD_DEREF") else None


def _defined(kind: type, name: str) -> Any:
    """The attribute as it stands in the class, without calling it."""
    return next((vars(c)[name] for c in kind.__mro__ if c is not object and name in vars(c)), None)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _unbound(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _is_grad_mode(wrapper: types.FunctionType) -> bool:
    """`@torch.no_grad()` and its like around a function."""
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or ()))
    if wrapper.__code__.co_name != "decorate_context" or "ctx_factory" not in cells:
        return False
    factory = cells["ctx_factory"].cell_contents
    return factory in GRAD_MODES or type(getattr(factory, "__self__", None)) in GRAD_MODES
