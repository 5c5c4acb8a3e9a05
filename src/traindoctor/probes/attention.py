"""How spread out attention is, wherever its scores can be seen in a sampled training forward pass."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from traindoctor.events import Event, ForwardBegin, ForwardEnd
from traindoctor.ground import frames
from traindoctor.ground.border import border
from traindoctor.ground.meant import meant
from traindoctor.ground.mode_stack import put_on_top, take_from_stack
from traindoctor.ground.names import may_run_compiled
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.quiet import active
from traindoctor.ground.unseen import handed_on
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter
from traindoctor.tape.operators import OF_ATTENTION, PRODUCTS, operator_of
from traindoctor.tape.ops import op_name

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

# One example of the batch and so many of its queries tell enough.
MOST_QUERIES = 64
# Masks are written as -inf, the least float, -1e9 or -1e4; no score of a working model is near.
MASKED = -5e3
# What a torch function costs by passing through a mode, in seconds: no clock inside it can see that.
HEARING_SECONDS = 3e-6


class Attention:
    """`attention.entropy`: of the weights, over the largest possible for the keys a query may see (1: all keys
    alike, 0: one key). `attention.score_std`: spread of a query's scores. Means over heads and queries of one
    example, by attention call.

    Seen are calls of scaled_dot_product_attention (also inside nn.MultiheadAttention) and of softmax whose result
    meets a matrix product. A compiled model is left alone.
    """

    name: ClassVar[str] = "attention"
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 50
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, ForwardEnd)

    names: Names

    def __init__(self) -> None:
        self.seconds_inside = 0.0
        self._later = Later()
        self._listener: Listener | None = None
        self._rows: dict[str, Tensor] = {}
        self._done = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            begins = due and event.wants_grad and event.training and not self._done
            if begins and self._listener is None and not may_run_compiled(event.module):
                self._listener = Listener(self.names)
                put_on_top(self._listener)
        elif isinstance(event, ForwardEnd) and self._listener is not None:
            self._stop()

    def _stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            take_from_stack(listener)
            self.seconds_inside = listener.seconds
            border.charge(listener.num_heard * HEARING_SECONDS)
            self._rows, self._done = listener.rows, True

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._stop()
        rows, self._rows, self._done = self._rows, {}, False
        if rows:
            device = next(iter(rows.values())).device
            table = torch.stack([row.to(device) for row in rows.values()])
            names = list(rows)
            self._later.put(step, table, lambda values: write(record, step, names, values))
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._stop()
        self._later.collect()


class Listener(TorchFunctionMode):
    """Looks at softmax and attention calls of one forward pass. Its own faults end the listening, nothing else."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.names = names
        self.rows: dict[str, Tensor] = {}
        self.seconds = 0.0
        self.num_heard = 0
        self._calls: Counter[str] = Counter()
        self._weights: dict[int, tuple[OurRef, str, Tensor]] = {}
        self._broken = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        func, kwargs = meant(func), kwargs or {}
        if self._broken or active():
            return handed_on(func, args, kwargs)
        name = op_name(func)
        if name == "multi_head_attention_forward":
            with self._inside():
                return handed_on(func, args, kwargs)
        result = handed_on(func, args, kwargs)
        self.num_heard += 1
        kind = operator_of(name).kind
        if kind in OF_ATTENTION:
            border.enter(self._look, kind, args, kwargs, result)
        return result

    def _look(self, kind: str, args: Any, kwargs: Any, result: Any) -> None:
        began = time.perf_counter()
        try:
            if kind == "scaled_dot_product_attention":
                self._put(self._place(), of_call(*args, **kwargs))
            elif kind == "softmax":
                if isinstance(result, Tensor):
                    scores = args[0] if args else kwargs["input"]
                    row = of_softmax(scores, kwargs.get("dim", args[1] if len(args) > 1 else None))
                    if row is not None:
                        self._weights[id(result)] = (OurRef(result), self._place(), row)
            else:
                self._follow(kind, args, kwargs, result)
        except Exception:  # one measurement less: the others go on
            self._broken = True
        self.seconds += time.perf_counter() - began

    def _follow(self, kind: str, args: Any, kwargs: Any, result: Any) -> None:
        for tensor in tensors_in((args, kwargs)) if self._weights else ():
            found = self._weights.get(id(tensor))
            if found is None or found[0]() is not tensor:
                continue
            if kind in PRODUCTS:
                self._put(found[1], found[2])
            elif isinstance(result, Tensor):
                self._weights[id(result)] = (OurRef(result), *found[1:])

    def _place(self) -> str:
        module = frames.here(4).module
        return "attention" if module is None else self.names.of_module(module) or "model"

    def _put(self, place: str, row: Tensor) -> None:
        self._calls[place] += 1
        number = self._calls[place]
        self.rows[place if number == 1 else f"{place} #{number}"] = row

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """nn.MultiheadAttention is one torch function to a mode: its inner calls are heard by their names."""
        kept = {name: getattr(F, name) for name in ("scaled_dot_product_attention", "softmax")}

        def heard(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                result = kept[name](*args, **kwargs)
                if name == "softmax":
                    # with need_weights: it is an attention, no product need be awaited
                    border.enter(self._look_at_scores, args, kwargs)
                else:
                    border.enter(self._look, name, args, kwargs, result)
                return result

            return call

        try:
            for name in kept:
                setattr(F, name, heard(name))
            yield
        finally:
            for name, original in kept.items():
                setattr(F, name, original)

    def _look_at_scores(self, args: Any, kwargs: Any) -> None:
        try:
            row = of_softmax(args[0], kwargs.get("dim", -1))
            if row is not None:
                self._put(self._place(), row)
        except Exception:
            self._broken = True


def of_softmax(scores: Tensor, dim: int | None) -> Tensor | None:
    """Entropy and spread of scores (..., queries, keys); None for what cannot be attention."""
    if scores.ndim < 3 or dim not in (-1, scores.ndim - 1) or scores.shape[-1] < 2:
        return None
    one = scores.detach()[0] if scores.ndim > 3 else scores.detach()
    return summary(one.flatten(0, -3) if one.ndim > 3 else one)


def of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The same from what F.scaled_dot_product_attention is given, for the first example and some queries."""
    q, k = query.detach(), key.detach()
    mask = attn_mask.detach() if attn_mask is not None else None
    while q.ndim > 3:
        q, k = q[0], k[0]
    length, keys = q.shape[-2], k.shape[-2]
    rows = torch.arange(0, length, max(1, length // MOST_QUERIES), device=q.device)
    if enable_gqa and q.ndim == 3 and k.shape[0] != q.shape[0]:
        k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    factor = scale if scale is not None else q.shape[-1] ** -0.5
    scores = (q[..., rows, :].float() @ k.float().mT) * factor  # (H, some T, T)
    if mask is not None:
        while mask.ndim > 3:
            mask = mask[0]
        mask = mask.expand(*mask.shape[:-2], length, keys)[..., rows, :]
        blocked = torch.full((), -torch.inf, device=q.device)
        scores = scores.where(mask, blocked) if mask.dtype == torch.bool else scores + mask
    if is_causal:
        future = torch.arange(keys, device=q.device) > rows[:, None]
        scores = scores.masked_fill(future, -torch.inf)
    return summary(scores)


def summary(scores: Tensor) -> Tensor:
    """(entropy over its largest, spread), means over queries that may see two keys or more. (H, T, keys)"""
    step = max(1, scores.shape[-2] // MOST_QUERIES)
    x = scores[..., ::step, :].float()
    seen = x > MASKED
    count = seen.sum(-1)
    x = x.masked_fill(~seen, -torch.inf)
    log_weights = x.log_softmax(-1)
    weights = log_weights.exp()
    entropy = -(weights * log_weights.masked_fill(~seen, 0.0)).sum(-1)
    centred = x - (x.masked_fill(~seen, 0.0).sum(-1) / count.clamp_min(1)).unsqueeze(-1)
    spread = (centred.masked_fill(~seen, 0.0).square().sum(-1) / count.clamp_min(1)).sqrt()
    telling = count >= 2
    share = entropy / count.clamp_min(2).log()
    total = telling.sum()
    return torch.stack(
        [share.where(telling, 0.0).sum() / total, spread.where(telling, 0.0).sum() / total]
    )


def write(record: RecordWriter, step: int, names: list[str], table: Tensor) -> None:
    record.layers("attention.entropy", step, names, table[:, 0].numpy())
    record.layers("attention.score_std", step, names, table[:, 1].numpy())
