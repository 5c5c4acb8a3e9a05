"""The precision laboratory: what summation and dtype do to a softmax, its loss and its gradient.

    results = measure(sizes=(34, 50257))      # one Measurement per size, scale, dtype and method
    print(conclusions(results))

A row of V logits is rounded to a dtype, and from there everything is computed in that dtype as a
hand-written kernel would: x - max, exp, the sum, log, the quotients. The truth is float64 on the same
rounded logits, so that only the arithmetic is judged. The methods differ in the sum alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.numerics.summation import METHODS

SIZES = (34, 1003, 2004, 32000, 50257, 262144)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Standard deviation of the logits; "outliers" has 1, and one logit in a thousand 20 above the rest.
SCALES: dict[str, float] = {"1": 1.0, "10": 10.0, "100": 100.0, "outliers": 1.0}
OUTLIER = 20.0
OUTLIER_SHARE = 1e-3
NUM_ROWS = 4
# An error of loss or gradient that training could notice. Far under the noise of a batch, and a
# quarter of what rounding a gradient to bfloat16 does to it anyway.
NOTICEABLE = 1e-3
# One way of adding is better than another when its error is under this share of the other's.
BETTER = 0.5


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Worst relative error over the rows, against float64."""

    vocabulary: int
    scale: str
    dtype: str
    method: str
    denominator: float
    """of the sum of exponentials"""
    loss: float
    gradient: float
    """Frobenius norm of the error over that of the gradient"""


def make_logits(V: int, scale: str, generator: torch.Generator) -> Tensor:
    """NUM_ROWS rows of logits (R, V) in float32."""
    x = torch.randn(NUM_ROWS, V, generator=generator) * SCALES[scale]
    if scale == "outliers":
        share = max(OUTLIER_SHARE, 1 / V)
        x += OUTLIER * (torch.rand(NUM_ROWS, V, generator=generator) < share)
    return x


def softmax_terms(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x - max, its exponentials), each rounded to x's dtype."""
    shifted = x - x.amax(1, keepdim=True)
    return shifted, shifted.exp()


def truth(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(denominator, loss, gradient) of the rows in float64."""
    shifted, e = softmax_terms(x.double())
    S = e.sum(1)
    column = targets.unsqueeze(1)
    loss = torch.log(S) - shifted.gather(1, column).squeeze(1)
    gradient = e / S.unsqueeze(1)
    gradient.scatter_add_(1, column, -torch.ones_like(column, dtype=torch.float64))
    return S, loss, gradient


def measure(
    *,
    sizes: Sequence[int] = SIZES,
    scales: Iterable[str] = tuple(SCALES),
    dtypes: Iterable[str] = tuple(DTYPES),
    seed: int = 0,
) -> list[Measurement]:
    """All combinations; rows of all scales are summed together, which is what makes it quick."""
    scales = tuple(scales)
    found = []
    for V in sizes:
        generator = torch.Generator().manual_seed(seed + V)
        logits = torch.cat(
            [make_logits(V, scale, generator) for scale in scales]
        )  # (R * scales, V)
        targets = torch.randint(V, (len(logits),), generator=generator)
        for dtype in dtypes:
            x = logits.to(DTYPES[dtype])
            exact = truth(x, targets)
            shifted, e = softmax_terms(x)
            for method, add in METHODS.items():
                errors = _errors(shifted, e, add(e), targets, exact)
                for i, scale in enumerate(scales):
                    rows = slice(i * NUM_ROWS, (i + 1) * NUM_ROWS)
                    denominator, loss, gradient = (float(error[rows].max()) for error in errors)
                    found.append(
                        Measurement(
                            vocabulary=V,
                            scale=scale,
                            dtype=dtype,
                            method=method,
                            denominator=denominator,
                            loss=loss,
                            gradient=gradient,
                        )
                    )
    return found


def _errors(
    shifted: Tensor, e: Tensor, S: Tensor, targets: Tensor, exact: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Relative errors (R,) of denominator, loss and gradient computed in the dtype of `e` from its sum S."""
    column = targets.unsqueeze(1)
    loss = torch.log(S) - shifted.gather(1, column).squeeze(1)
    gradient = e / S.unsqueeze(1)
    at_target = gradient.gather(1, column) - 1
    gradient = gradient.double().scatter(1, column, at_target.double())
    true_S, true_loss, true_gradient = exact
    return (
        (S.double() - true_S).abs() / true_S,
        # a sure row's loss may be 0 in the dtype: then the error is all of it
        (loss.double() - true_loss).abs() / true_loss.abs().clamp_min(torch.finfo(e.dtype).tiny),
        (gradient - true_gradient).norm(dim=1) / true_gradient.norm(dim=1).clamp_min(1e-300),
    )


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """Whether the way of adding shows in what the trainer sees; worst error of loss or gradient over the scales."""

    vocabulary: int
    dtype: str
    naive: float
    pairwise: float
    compensated: float
    matters: bool
    """another way than the naive one makes a noticeable error clearly smaller"""
    text: str


def conclusions(measurements: Sequence[Measurement]) -> list[Conclusion]:
    """For each size and dtype, from the measurements alone: does the way of adding change the result?"""
    given = []
    for V, dtype in dict.fromkeys((m.vocabulary, m.dtype) for m in measurements):
        here = [m for m in measurements if (m.vocabulary, m.dtype) == (V, dtype)]
        worst = {method: max(_seen(m) for m in here if m.method == method) for method in METHODS}
        best = min(worst, key=lambda method: worst[method])
        noticeable = not worst["naive"] <= NOTICEABLE
        matters = noticeable and worst[best] < BETTER * worst["naive"]
        errors = ", ".join(f"{method} {error:.0e}" for method, error in worst.items())
        if not noticeable:
            text = f"changes nothing that training could notice ({errors})"
        elif matters:
            text = f"matters: {errors}; add {best}, or in float32"
        else:
            text = f"is not the trouble, {dtype} itself is ({errors})"
        given.append(Conclusion(vocabulary=V, dtype=dtype, matters=matters, text=text, **worst))
    return given


def _seen(measurement: Measurement) -> float:
    """The worse error of loss and gradient; an overflow is as wrong as can be."""
    errors = (measurement.loss, measurement.gradient)
    return math.inf if any(math.isnan(error) for error in errors) else max(errors)


def reference_error(V: int = 34, seed: int = 0) -> float | None:
    """Relative error of the float64 denominator itself, against 50 digits; None without mpmath."""
    try:
        import mpmath
    except ImportError:
        return None
    generator = torch.Generator().manual_seed(seed + V)
    x = make_logits(V, "10", generator)
    S, _, _ = truth(x, torch.zeros(len(x), dtype=torch.int64))
    worst = 0.0
    with mpmath.workdps(50):
        for row, value in zip(x.double().tolist(), S.tolist()):
            top = max(row)
            exact = mpmath.fsum(mpmath.exp(mpmath.mpf(v) - mpmath.mpf(top)) for v in row)
            worst = max(worst, float(abs((mpmath.mpf(value) - exact) / exact)))
    return worst
