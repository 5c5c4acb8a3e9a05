"""Finite differences that know their own error.

A difference quotient has two enemies: curvature (a long step) and rounding (a short one). Both are measured
here, the rounding at steps so short that nothing but rounding is left, and the step with the least of both is
taken. What is still uncertain is stated, so that a right gradient is never called wrong for it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Steps tried, relative to the size of the input, long to short. Rounding decides how far down it pays to go.
STEPS = {
    torch.float64: (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8),
    torch.float32: (2e-1, 5e-2, 1e-2, 3e-3, 1e-3, 3e-4),
}
# So short that a smooth function does not curve: what its second difference shows is rounding.
SILENT_STEPS = {
    torch.float64: (1e-11, 2e-11, 3e-11, 5e-11, 7e-11),
    torch.float32: (1e-6, 2e-6, 3e-6, 5e-6, 7e-6),
}
# A quotient this sure (relative) need not be made surer.
ENOUGH = {torch.float64: 1e-8, torch.float32: 1e-4}
NUM_DIRECTIONS = 4
# An error is one when it is this many times what the quotient itself is uncertain by ...
SURE = 8.0
# ... and more than the dtype's own rounding can make of a sum of many terms (relative).
ROUNDING = {torch.float64: 1e-6, torch.float32: 5e-3}
# A test that could not have seen an error of this size has not passed anything.
SHARP = 2e-3
# A disagreement below this share of what one input typically moves is not measured by itself.
FLOOR_SHARE = 1e-3


@dataclass(frozen=True)
class Quotient:
    """A derivative by differences and how far off it may be."""

    value: float
    error: float


def derivative(phi: Callable[[float], float], scale: float, dtype: torch.dtype) -> Quotient:
    """d phi(t) / dt at 0. `scale` is a natural length for t: the size of what is moved."""
    here = phi(0.0)
    if not math.isfinite(here):
        return Quotient(math.nan, math.inf)
    rounding = _rounding(phi, here, scale, dtype)
    best = Quotient(math.nan, math.inf)
    previous = None
    for step in STEPS[dtype]:
        h = step * scale
        quotients = [_central(phi, h), _central(phi, h / 2)]
        # Richardson: the h^2 term cancels in smooth functions.
        value = (4 * quotients[1] - quotients[0]) / 3
        spread = abs(quotients[0] - quotients[1])
        curvature = abs(value - previous) if previous is not None else spread
        # Near a kink the two quotients agree by chance now and then, three in a row hardly ever.
        error = max(spread / 3, min(curvature, spread)) + 2 * rounding / h
        previous = value
        if math.isfinite(value) and error < best.error:
            best = Quotient(value, error)
        if best.error < ENOUGH[dtype] * abs(best.value):
            break
    return best


def _central(phi: Callable[[float], float], h: float) -> float:
    return (phi(h) - phi(-h)) / (2 * h)


def _rounding(
    phi: Callable[[float], float], here: float, scale: float, dtype: torch.dtype
) -> float:
    """The absolute rounding of phi near 0, from second differences at steps that move nothing else."""
    eps = torch.finfo(dtype).eps
    seen = [abs(phi(s * scale) - 2 * here + phi(-s * scale)) for s in SILENT_STEPS[dtype]]
    finite = [value for value in seen if math.isfinite(value)]
    return max([eps * abs(here), *finite])


@dataclass(frozen=True)
class DirectionalTest:
    """Claims of a gradient against quotients, over several random directions."""

    claims: tuple[float, ...]
    quotients: tuple[Quotient, ...]
    size: float
    """Root of the summed squares of the claim's terms: what a directional derivative is typically."""
    dtype: torch.dtype
    floor: float = 0.0
    """The least size that a disagreement is measured by: a gradient may be exactly 0."""

    @property
    def difference(self) -> float:
        """The largest disagreement, relative to the larger of claim and quotient over all directions."""
        return max(map(self._relative, self.claims, self.quotients), default=0.0)

    @property
    def noise(self) -> float:
        """How large the largest disagreement may be for a right gradient."""
        errors = [q.error for q in self.quotients if math.isfinite(q.error)]
        worst = max(errors, default=math.inf)
        return SURE * worst / self.reach + ROUNDING[self.dtype]

    @property
    def reach(self) -> float:
        sizes = [abs(c) for c in self.claims] + [abs(q.value) for q in self.quotients]
        return max([self.size, self.floor, *(s for s in sizes if math.isfinite(s))]) or 1.0

    def _relative(self, claim: float, quotient: Quotient) -> float:
        if not math.isfinite(quotient.error):
            return 0.0
        return abs(claim - quotient.value) / self.reach

    @property
    def outcome(self) -> str:
        """'pass', 'wrong' or 'undecided'."""
        if not any(math.isfinite(q.error) for q in self.quotients):
            return "undecided"
        sure = [
            abs(c - q.value) > SURE * q.error + ROUNDING[self.dtype] * self.reach
            for c, q in zip(self.claims, self.quotients)
        ]
        if any(sure):
            return "wrong"
        sharp = [q.error < SHARP * self.reach for q in self.quotients]
        return "pass" if all(sharp) and self.noise < 0.05 else "undecided"

    @property
    def factor(self) -> float | None:
        """claim = factor * derivative in every direction, or None."""
        pairs = [(c, q) for c, q in zip(self.claims, self.quotients) if abs(q.value) > 3 * q.error]
        # Measured by the derivative alone: a claim that is a hundred times too large must not hide it.
        largest = max((abs(q.value) for _, q in pairs), default=0.0)
        telling = [(c, q) for c, q in pairs if abs(q.value) > 0.05 * largest]
        if len(telling) < 2:
            return None
        ratios = sorted(c / q.value for c, q in telling)
        middle = ratios[len(ratios) // 2]
        slack = 2e-3 + max(3 * q.error / abs(q.value) for _, q in telling)
        return middle if ratios[-1] - ratios[0] <= slack * max(1e-12, abs(middle)) else None

    @property
    def pattern(self) -> str:
        if self.outcome != "wrong":
            return "equal" if self.outcome == "pass" else "cannot be decided"
        factor = self.factor
        if factor is None:
            return "no simple pattern"
        return "opposite sign" if abs(factor + 1) < 5e-3 else f"constant factor {factor:.5g}"


def directional_test(
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    gradients: Sequence[Tensor] | None = None,
    only: int | None = None,
    mask: Tensor | None = None,
    seed: int = 0,
    num_directions: int = NUM_DIRECTIONS,
    floor: float = 0.0,
) -> DirectionalTest:
    """Tests the gradients of a scalar function, by default those that autograd gives for it.

    `only` moves one input, `mask` only some of its entries.
    """
    moved = [i for i, x in enumerate(inputs) if x.is_floating_point() and only in (None, i)]
    dtype = inputs[moved[0]].dtype
    dtype = dtype if dtype in STEPS else torch.float32
    if gradients is None:
        gradients = analytic(function, inputs)
    generator = torch.Generator().manual_seed(seed)
    claims, quotients, squares = [], [], 0.0
    for _ in range(num_directions):
        directions = {}
        for i in moved:
            d = torch.randn(inputs[i].shape, generator=generator, dtype=torch.float64)
            d = d if mask is None else d * mask.to(d)
            # Each tensor moves in proportion to its own size, so that none hides the others.
            directions[i] = d.to(inputs[i].device) * _size(inputs[i])
        claim = sum(float((gradients[i].double() * d).sum()) for i, d in directions.items())
        terms = sum(
            float((gradients[i].double() * d).square().sum()) for i, d in directions.items()
        )

        def phi(t: float, directions: dict[int, Tensor] = directions) -> float:
            at = [
                (x.double() + t * directions[i]).to(x.dtype) if i in directions else x
                for i, x in enumerate(inputs)
            ]
            with torch.no_grad():
                return float(function(*at))

        claims.append(claim)
        quotients.append(derivative(phi, 1.0, dtype))
        squares += terms
    size = math.sqrt(squares / num_directions)
    return DirectionalTest(tuple(claims), tuple(quotients), size, dtype, floor)


def own_gradient_test(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], *, num_directions: int
) -> DirectionalTest | None:
    """What the function itself claims, with a floor for gradients that are 0; None where it claims nothing at all."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    with torch.enable_grad():
        total = function(*leaves)
    if not total.requires_grad:
        return None
    claims = torch.autograd.grad(total, leaves, allow_unused=True)
    gradients = [torch.zeros_like(v) if g is None else g for g, v in zip(claims, inputs)]
    floor = FLOOR_SHARE * typical_size(gradients, inputs)
    return directional_test(
        function, inputs, gradients=gradients, num_directions=num_directions, floor=floor
    )


def typical_size(gradients: Sequence[Tensor], inputs: Sequence[Tensor]) -> float:
    """The largest directional derivative that one of the inputs typically has."""
    sizes = [float(g.double().norm()) * _size(x) for g, x in zip(gradients, inputs)]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)


def analytic(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The gradients that the function itself claims."""
    leaves = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with torch.enable_grad():
        value = function(*leaves)
    live = [x for x in leaves if x.requires_grad]
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = iter(torch.autograd.grad(value, live, allow_unused=True))
    made = []
    for x in leaves:
        gradient = next(found) if x.requires_grad else None
        made.append(torch.zeros_like(x) if gradient is None else gradient)
    return made


def _size(tensor: Tensor) -> float:
    """Root mean square, 1 for tensors of zeros."""
    if tensor.numel() == 0:
        return 1.0
    rms = float(tensor.detach().double().square().mean().sqrt())
    return rms if rms > 0 and math.isfinite(rms) else 1.0
