"""Linear layers, pointwise functions and normalisations, computed again with one thing changed."""

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from traindoctor.compare.kinds.base import Array, Kind, Scene
from traindoctor.compare.trace import Entry

MOST_TRIED = 8


def linear(scene: Scene) -> Kind | None:
    """`x W^T + b` with the bias missing or doubled, or with W."""
    weight = scene.weight(f"{scene.entry.name}.weight")
    bias = scene.weight(f"{scene.entry.name}.bias")
    if bias is not None and bias.shape == scene.a.shape[-1:]:
        for times, words in ((-1, "is not added"), (1, "is added twice")):
            if scene.explains(scene.a + times * bias):
                return Kind("bias", f"the bias {scene.entry.name}.bias {words} in B")
    if weight is None or weight.ndim != 2 or weight.shape[0] != weight.shape[1]:
        return None
    for x in _inputs(scene, f"{scene.entry.name}.input", weight.shape[1]):
        if scene.is_a(x @ weight.T + (0 if bias is None else bias)):
            if scene.explains(x @ weight + (0 if bias is None else bias)):
                return Kind(
                    "transposition", f"B multiplies with {scene.entry.name}.weight transposed"
                )
    return None


def linear_backward(scene: Scene) -> Kind | None:
    """The gradient that a linear layer hands on, with its weight turned over."""
    for entry in scene.a_trace.of_kind("weight", 0):
        if len(entry.shape) != 2 or entry.shape[0] != entry.shape[1]:
            continue
        weight = scene.weight(entry.name)
        given = scene.get("gradient", entry.name.rpartition(".")[0])
        if weight is None or given is None or given.shape[-1] != weight.shape[0]:
            continue
        if scene.is_a(given @ weight) and scene.explains(given @ weight.T):
            return Kind("transposition", f"B goes back through {entry.name} transposed")
    return None


def _inputs(scene: Scene, name: str, width: int) -> Iterator[Array]:
    """What a layer may have been given: its recorded input, else outputs that came before it."""
    own = scene.get("activation", name)
    if own is not None:
        yield own
        return
    same_step = (e for e in scene.earlier("activation") if e.step == scene.entry.step)
    fitting = (entry for entry in same_step if entry.shape[-1:] == (width,))
    yield from (entry.values() for entry in islice(fitting, MOST_TRIED))


def _of_its_shape(scene: Scene, kind: str) -> Iterator[Entry]:
    return (entry for entry in scene.earlier(kind) if entry.shape == scene.entry.shape)


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[float])(x))


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _gelu_tanh(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -700, 700))))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exact GELU": _gelu,
    "tanh GELU": _gelu_tanh,
    "quick GELU (x * sigmoid(1.702 x))": lambda x: np.asarray(x * _sigmoid(1.702 * x)),
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: np.asarray(x * _sigmoid(x)),
    "squared ReLU": lambda x: np.maximum(x, 0) ** 2,
    "no function": lambda x: x,
}


def pointwise(scene: Scene) -> Kind | None:
    """Another activation function of the same input."""
    for entry in islice(_of_its_shape(scene, "activation"), MOST_TRIED):
        x = entry.values()
        names = [name for name, function in FUNCTIONS.items() if scene.is_a(function(x))]
        for name, function in FUNCTIONS.items() if names else ():
            if name not in names and scene.explains(function(x)):
                return Kind("activation", f"B computes {name} where A computes {names[0]}")
    return None


def pointwise_backward(scene: Scene) -> Kind | None:
    """The derivative of another activation function."""
    x = scene.get("activation", scene.entry.name)
    if x is None:
        return None
    h = 1e-5
    slopes = {name: (f(x + h) - f(x - h)) / (2 * h) for name, f in FUNCTIONS.items()}
    for entry in islice(_of_its_shape(scene, "gradient"), MOST_TRIED):
        given = entry.values()
        names = [name for name, slope in slopes.items() if scene.is_a(given * slope)]
        for name, slope in slopes.items() if names else ():
            if name not in names and scene.explains(given * slope):
                return Kind("activation", f"B goes back through {name}, A through {names[0]}")
    return None


def norm_epsilon(scene: Scene) -> Kind | None:
    """A normalisation whose rows are a little shorter or longer: another epsilon, or another variance."""
    weight = scene.weight(f"{scene.entry.name}.weight")
    bias = scene.weight(f"{scene.entry.name}.bias")
    if weight is None or weight.shape != scene.a.shape[-1:]:
        return None
    shift = 0.0 if bias is None else bias
    eps = scene.entry.about.get("eps")
    for x in _inputs(scene, f"{scene.entry.name}.input", len(weight)):
        for centred, name in ((True, "LayerNorm"), (False, "RMSNorm")):
            inner = x - x.mean(-1, keepdims=True) if centred else x
            variance = (inner**2).mean(-1, keepdims=True)
            own = (
                float(eps)
                if isinstance(eps, (int, float))
                else _fitted(scene.a, inner, variance, weight, shift)
            )
            if own is None or not scene.is_a(inner / np.sqrt(variance + own) * weight + shift):
                continue
            n = x.shape[-1]
            if scene.explains(inner / np.sqrt(variance * n / (n - 1) + own) * weight + shift):
                return Kind(
                    "variance",
                    f"B divides the variance of {scene.entry.name} by n - 1, A by n",
                )
            other = x if centred else x - x.mean(-1, keepdims=True)
            square = (other**2).mean(-1, keepdims=True)
            if scene.explains(other / np.sqrt(square + own) * weight + shift):
                return Kind(
                    "variance", f"A computes a {name}, B the other of LayerNorm and RMSNorm"
                )
            found = _fitted(scene.b, inner, variance, weight, shift)
            if found is not None and scene.explains(
                inner / np.sqrt(variance + found) * weight + shift
            ):
                return Kind(
                    "epsilon",
                    f"the epsilon of {scene.entry.name} is {found:.2g} in B, {own:.2g} in A",
                )
    return None


def _fitted(
    made: Array, inner: Array, variance: Array, weight: Array, shift: Array | float
) -> float | None:
    """The epsilon with which a normalisation gives this: the rows' lengths tell it."""
    scaled = inner * weight
    square = (scaled**2).sum(-1, keepdims=True)
    factor = ((made - shift) * scaled).sum(-1, keepdims=True) / np.where(square > 0, square, 1)
    good = factor > 0
    if not good.any():
        return None
    each = 1 / factor[good] ** 2 - variance[good]
    # Rows of small variance show it best.
    found = float(np.average(each, weights=1 / (variance[good] + 1e-12) ** 2))
    return found if found > 0 else None


def norm_backward(scene: Scene) -> Kind | None:
    """The gradient that a normalisation hands on, with one of its terms or the skip path's share left out."""
    x = scene.get("activation", scene.entry.name)
    if x is None:
        return None
    for entry in scene.a_trace.of_kind("weight", 0):
        owner = entry.name.rpartition(".")[0]
        given, weight = scene.get("gradient", owner), scene.weight(entry.name)
        if (
            given is None
            or weight is None
            or weight.ndim != 1
            or given.shape != x.shape
            or weight.shape != x.shape[-1:]
        ):
            continue
        maker = scene.a_trace.by_key.get(("activation", scene.entry.step, owner))
        eps = maker.about.get("eps", 1e-5) if maker is not None else 1e-5
        for centred in (True, False):
            parts = _norm_parts(x, given * weight, float(eps), centred)
            whole = np.asarray(sum(parts.values()))
            for skip_name, skip in _skips(scene, x.shape):
                if not scene.is_a(whole + skip):
                    continue
                for name, part in parts.items():
                    if scene.explains(whole - part + skip):
                        return Kind(
                            "missing-term", f"the backward pass of {owner} lacks {name} in B"
                        )
                if skip_name and scene.explains(whole):
                    return Kind(
                        "missing-term",
                        f"the gradient of the skip path ({skip_name}) is missing in B",
                    )
                if skip_name and scene.explains(np.asarray(skip)):
                    return Kind("missing-term", f"the gradient through {owner} is missing in B")
    return None


def _skips(scene: Scene, shape: tuple[int, ...]) -> Iterator[tuple[str, Array | float]]:
    yield "", 0.0
    same_step = (e for e in scene.earlier("gradient") if e.step == scene.entry.step)
    fitting = (entry for entry in same_step if entry.shape == shape)
    yield from ((entry.name, entry.values()) for entry in islice(fitting, 2 * MOST_TRIED))


def _norm_parts(x: Array, given: Array, eps: float, centred: bool) -> dict[str, Array]:
    """The terms of a normalisation's gradient; their sum is the whole."""
    inner = x - x.mean(-1, keepdims=True) if centred else x
    rate = 1 / np.sqrt((inner**2).mean(-1, keepdims=True) + eps)
    hat = inner * rate
    parts = {
        "the direct term": given * rate,
        "the term of the variance": -hat * (given * hat).mean(-1, keepdims=True) * rate,
    }
    if centred:
        parts["the term of the mean"] = -given.mean(-1, keepdims=True) * rate * np.ones_like(x)
    return parts
