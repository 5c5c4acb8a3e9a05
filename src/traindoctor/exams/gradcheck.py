"""`traindoctor.gradcheck`: tests a gradient written by hand against finite differences and a reference.

    result = traindoctor.gradcheck(MyFunction.apply, (x, w))
    print(result)            # per input: pass, wrong, or cannot be decided at this precision
    assert result.ok

A C or CUDA library is tested through a small adapter: see `Adapter` and examples/gradcheck_ctypes.py.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from traindoctor.errors import TraindoctorError
from traindoctor.numerics.finite_difference import DirectionalTest, directional_test, typical_size
from traindoctor.numerics.locate import locate
from traindoctor.replay.compare import compare
from traindoctor.replay.ops import replace, tensors_in

Outcome = Literal["pass", "wrong", "undecided"]
WORDS = {
    "pass": "pass",
    "wrong": "WRONG",
    "undecided": "cannot be decided at this precision",
}
# Against a reference of the same dtype: about a hundred roundings, of the largest gradient.
AGAINST_REFERENCE = {torch.float64: 1e-9, torch.float32: 1e-3}


@dataclass(frozen=True)
class InputResult:
    """What was found for one input (or parameter)."""

    name: str
    outcome: Outcome
    difference: float
    """Largest disagreement, relative."""
    noise: float
    """What a right gradient may show."""
    pattern: str
    factor: float | None
    by: str
    """'finite differences' or 'reference'."""
    dtype: str

    def __str__(self) -> str:
        text = f"{self.name}: {WORDS[self.outcome]}"
        text += f" (off by {self.difference:.1e}, noise {self.noise:.1e}, {self.dtype}, {self.by})"
        return text + (f": {self.pattern}" if self.outcome == "wrong" else "")


@dataclass(frozen=True)
class GradcheckResult:
    """`ok` when every input passed."""

    inputs: tuple[InputResult, ...]

    @property
    def outcome(self) -> Outcome:
        outcomes = {one.outcome for one in self.inputs}
        if "wrong" in outcomes:
            return "wrong"
        return "undecided" if "undecided" in outcomes or not outcomes else "pass"

    @property
    def ok(self) -> bool:
        return self.outcome == "pass"

    def __str__(self) -> str:
        return "\n".join(map(str, self.inputs))


@dataclass(frozen=True)
class Adapter:
    """A forward and a backward that are not torch: NumPy arrays in, NumPy arrays out.

    `forward(*arrays)` gives an array (or number), `backward(grad_output, *arrays)` the gradients of the inputs, in
    order, None for those without.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]

    def __call__(self, *tensors: Tensor) -> Tensor:
        return _Foreign.apply(self, *tensors)


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


def gradcheck(
    fn: Callable[..., Any] | nn.Module,
    inputs: Sequence[Any] | Tensor,
    reference: Callable[..., Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    patterns: bool = True,
) -> GradcheckResult:
    """Per floating input (and parameter of a module): is its gradient the derivative of the function?

    float32 functions are tested in float64 too where they accept it. A `reference` with the same signature is
    compared with as well; it may be differentiable torch code. `patterns` looks for where a wrong gradient is wrong,
    which takes ten times as long as finding that it is.
    """
    values = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not any(tensor.is_floating_point() for tensor in tensors_in(values)):
        raise TraindoctorError(
            "gradcheck needs at least one floating tensor among the inputs to differentiate by; none was given"
        )
    problem = Problem(fn, values, dict(kwargs or {}), seed)
    if reference is not None:
        return GradcheckResult(tuple(problem.against(reference)))
    return GradcheckResult(tuple(problem.by_differences(patterns)))


class Problem:
    """A function of a flat list of floating tensors that gives one number."""

    def __init__(self, fn: Any, values: list[Any], kwargs: dict[str, Any], seed: int) -> None:
        self.fn = fn
        self.values = values
        self.kwargs = kwargs
        self.seed = seed
        self.parameters: dict[str, Tensor] = {}
        if isinstance(fn, nn.Module):
            self.parameters = {n: p.detach() for n, p in fn.named_parameters() if p.requires_grad}
        self.live = [t for t in tensors_in((values, kwargs)) if t.is_floating_point()]
        self.names = [f"input {number}" for number in range(len(self.live))] + list(self.parameters)
        if not isinstance(fn, nn.Module):
            self.names = _argument_names(fn, values, self.live) or self.names

    @property
    def tensors(self) -> list[Tensor]:
        return [t.detach() for t in self.live] + list(self.parameters.values())

    def scalar(self, fn: Any) -> Callable[..., Tensor]:
        """<cotangent, fn(...)> with a fixed random cotangent per output."""

        def phi(*tensors: Tensor) -> Tensor:
            count = len(self.live)
            table = {id(old): new for old, new in zip(self.live, tensors[:count])}
            swap = lambda t: table.get(id(t), t)  # noqa: E731
            args = tuple(replace(self.values, Tensor, swap))
            kwargs = replace(self.kwargs, Tensor, swap)
            torch.manual_seed(self.seed)  # dropout inside must be the same at every call
            if isinstance(fn, nn.Module) and fn is self.fn:
                made = torch.func.functional_call(
                    self._module(tensors), dict(zip(self.parameters, tensors[count:])), args, kwargs
                )
            else:
                made = fn(*args, **kwargs)
            return _weighted(made, self.seed)

        return phi

    def _module(self, tensors: Sequence[Tensor]) -> nn.Module:
        """The module in the tensors' precision: its buffers must follow."""
        wanted = tensors[0].dtype
        first = next(
            (t for t in [*self.fn.parameters(), *self.fn.buffers()] if t.is_floating_point()), None
        )
        if first is None or first.dtype == wanted:
            return copy.deepcopy(self.fn)
        return copy.deepcopy(self.fn).to(wanted)

    def by_differences(self, patterns: bool = True) -> list[InputResult]:
        with torch.random.fork_rng(devices=[]):
            tensors, dtype = self._precision()
            phi = self.scalar(self.fn)
            results = []
            gradients = _claims(phi, tensors)
            # A bias before a normalisation has a gradient of exactly 0: rounding there is no error.
            floor = 1e-3 * typical_size(gradients, tensors)
            for number, name in enumerate(self.names):
                test = directional_test(
                    phi,
                    tensors,
                    gradients=gradients,
                    only=number,
                    seed=self.seed + number,
                    floor=floor,
                )
                pattern = test.pattern
                if patterns and test.outcome == "wrong" and test.factor is None:
                    pattern = locate(phi, tensors, gradients, number) or pattern
                results.append(_result(name, test, pattern, dtype))
            return results

    def _precision(self) -> tuple[list[Tensor], torch.dtype]:
        """float64 where the function takes it and answers in it."""
        own = self.tensors
        doubled = [t.double() for t in own]
        try:
            with torch.no_grad():
                value = self.scalar(self.fn)(*doubled)
            if value.dtype == torch.float64 and bool(torch.isfinite(value)):
                return doubled, torch.float64
        except Exception:  # the user's code, in a dtype it may not know
            pass
        return own, own[0].dtype

    def against(self, reference: Any) -> list[InputResult]:
        with torch.random.fork_rng(devices=[]):
            tensors = self.tensors
            given = _claims(self.scalar(self.fn), tensors)
            try:
                expected = _claims(self.scalar(reference), [t.double() for t in tensors])
            except Exception:  # a reference that knows float32 only
                expected = _claims(self.scalar(reference), tensors)
            limit = AGAINST_REFERENCE.get(tensors[0].dtype, 3e-2)
            floor = 1e-3 * max(float(g.double().norm()) for g in expected)
            results = []
            for name, a, r in zip(self.names, given, expected):
                part = compare(name, a, r, floor)
                wrong = not part.difference <= limit
                results.append(
                    InputResult(
                        name,
                        "wrong" if wrong else "pass",
                        part.difference,
                        limit,
                        part.pattern,
                        part.factor if part.residue < 1e-3 else None,
                        "reference",
                        str(a.dtype).removeprefix("torch."),
                    )
                )
            return results


def _result(name: str, test: DirectionalTest, pattern: str, dtype: torch.dtype) -> InputResult:
    outcome: Outcome = test.outcome  # type: ignore[assignment]
    noise = test.noise if math.isfinite(test.noise) else math.inf
    return InputResult(
        name,
        outcome,
        test.difference,
        noise,
        pattern,
        test.factor if outcome == "wrong" else None,
        "finite differences",
        str(dtype).removeprefix("torch."),
    )


def _claims(phi: Callable[..., Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    with torch.enable_grad():
        value = phi(*leaves)
    if not value.requires_grad:
        raise TraindoctorError(
            "the function's output has no gradient: it is detached, or computed outside torch without an Adapter"
        )
    found = torch.autograd.grad(value, leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, leaves)]


def _weighted(made: Any, seed: int) -> Tensor:
    outputs = [t for t in tensors_in(made) if t.is_floating_point()]
    if not outputs:
        raise TraindoctorError(
            "the function gives no floating tensor back: there is nothing to differentiate"
        )
    generator = torch.Generator().manual_seed(seed)
    total = None
    for output in outputs:
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
        part = output.sum() if output.dim() == 0 else (output * weight).sum()
        total = part if total is None else total + part
    assert total is not None
    return total


def _argument_names(fn: Any, values: list[Any], live: list[Tensor]) -> list[str] | None:
    """The function's own names for its inputs, where it has a signature of plain arguments."""
    try:
        known = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [one.name for one in known if one.kind is not one.VAR_POSITIONAL]
    if len(names) < len(values) or not all(isinstance(v, Tensor) for v in live):
        return None
    by_id = {id(value): name for value, name in zip(values, names)}
    found = [by_id.get(id(tensor)) for tensor in live]
    return None if None in found else found  # type: ignore[return-value]
