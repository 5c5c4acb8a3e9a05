"""`traindoctor.gradcheck`: tests a gradient written by hand against finite differences and a reference.

    result = traindoctor.gradcheck(MyFunction.apply, (x, w))
    print(result)            # per input: pass, wrong, or cannot be decided at this precision
    assert result            # true only if every gradient is right

A C or CUDA library is tested through a small adapter: see exams/adapter.py and examples/gradcheck_ctypes.py.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.errors import TraindoctorError
from traindoctor.ground.modes import random_state_restored, seed_generators
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.numerics.finite_difference import DirectionalTest, directional_test, typical_size
from traindoctor.numerics.gradcheck_result import GradcheckResult, InputResult, Outcome
from traindoctor.numerics.locate import locate
from traindoctor.tape.compare import compare

# Against a reference of the same dtype: about a hundred roundings, of the largest gradient.
AGAINST_REFERENCE = {torch.float64: 1e-9, torch.float32: 1e-3}


def gradcheck(
    fn: Callable[..., Any] | nn.Module,
    inputs: Sequence[Any] | Tensor,
    reference: Callable[..., Any] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    patterns: bool = True,
    raise_exception: bool = False,
) -> GradcheckResult:
    """Per floating input (and parameter of a module): is its gradient the derivative of the function?

    The result is true only where every gradient is right, as torch.autograd.gradcheck's is. With `raise_exception` a
    gradient that is wrong, or that cannot be decided, raises a GradcheckError; torch's own has that switched on by
    default, here the result says which input is wrong and how.

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
    by_reference = reference is not None
    found = problem.against(reference) if by_reference else problem.by_differences(patterns)
    result = GradcheckResult(tuple(found))
    if raise_exception:
        result.require()
    return result


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
            seed_generators(self.seed)  # dropout inside must be the same at every call
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
        wanted: torch.dtype | None = tensors[0].dtype
        first = next(
            (t for t in [*self.fn.parameters(), *self.fn.buffers()] if t.is_floating_point()), None
        )
        if first is None or first.dtype == wanted:
            wanted = None
        module: nn.Module = copy.deepcopy(self.fn)
        return module if wanted is None else module.to(wanted)

    def by_differences(self, patterns: bool = True) -> list[InputResult]:
        with random_state_restored():
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
                if patterns and test.outcome == "wrong":
                    if test.factor is None:
                        masks = self._masks(tensors[number])
                        pattern = locate(phi, tensors, gradients, number, masks) or pattern
                    else:
                        pattern += origin(test.factor, tensors)
                results.append(_result(name, test, pattern, dtype))
            return results

    def _masks(self, x: Tensor) -> dict[str, Tensor]:
        """Where an argument says True, 0 or less than 0: masks, padding and ignored targets, laid over the input."""
        found = {}
        for number, value in enumerate(tensors_in((self.values, self.kwargs))):
            if value.is_floating_point() or value.is_complex():
                continue
            chosen = value if value.dtype == torch.bool else (value < 0)
            if not chosen.any() and value.dtype != torch.bool:
                chosen = value == 0
            laid = laid_over(chosen, x)
            if laid is not None and laid.any() and not laid.all():
                word = "is True" if value.dtype == torch.bool else "masks"
                found[f"argument {number} {word}"] = laid
        return found

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
        with random_state_restored():
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


def laid_over(mask: Tensor, x: Tensor) -> Tensor | None:
    """The mask in the shape of x: over its last axes as broadcasting has it, or over its first ones."""
    if mask.dim() == 0 or mask.dim() > x.dim():
        return None
    if tuple(x.shape[: mask.dim()]) == tuple(mask.shape):
        return mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())).expand(x.shape)
    try:
        return mask.expand(x.shape)
    except RuntimeError:
        return None


def origin(factor: float, tensors: Sequence[Tensor]) -> str:
    """Where a constant factor may come from: a size that was forgotten, or divided by once too often."""
    sizes: dict[int, str] = {}
    for tensor in tensors:
        if tensor.dim():
            sizes.setdefault(tensor.numel(), "the number of entries")
            sizes.setdefault(tensor.shape[0], "the size of the first axis")
            sizes.setdefault(tensor.shape[-1], "the size of the last axis")
            sizes.setdefault(tensor.numel() // tensor.shape[-1], "the number of rows")
    for size, what in sizes.items():
        if size > 1 and abs(abs(factor) / size - 1) < 2e-3:
            return f" ({what})"
        if size > 1 and abs(abs(factor) * size - 1) < 2e-3:
            return f" (1/{size}, {what})"
    return ""
