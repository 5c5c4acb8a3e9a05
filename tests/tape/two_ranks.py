"""Run by test_collectives.py: `python two_ranks.py OUT`. Each rank tapes steps that communicate; each replays alone.

While one rank replays, the other does the same or waits at a barrier: whoever issued a collective more would fail.
What was measured goes to OUT/rank-N as JSON, by case.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as joined
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from single_step import tape_step
from traindoctor.errors import ReplayError
from traindoctor.exams import load
from traindoctor.experiment.patient import Patient
from traindoctor.ground import exchange
from traindoctor.ground.quiet import quiet
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import distance_from_step
from traindoctor.tape.tape import StepTape

WIDTH, CLASSES, ROWS = 8, 5, 4


class Copy(torch.autograd.Function):
    """Megatron's f: the input as it is; its backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """Megatron's g: a sum over all ranks, in place; the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Doubling(Reduce):
    """A wrong g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        out = gradient.new_empty(ROWS, WIDTH)
        dist.reduce_scatter_tensor(out, gradient.contiguous(), async_op=True).wait()
        return out


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.new_empty(ROWS, WIDTH)
        dist.reduce_scatter(out, list(x.chunk(2)))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        out = gradient.new_empty(2 * ROWS, WIDTH)
        dist.all_gather_into_tensor(out, gradient.contiguous())
        return out


class Parallel(nn.Module):
    def __init__(self, enter: Callable[..., Tensor], leave: Callable[..., Tensor]) -> None:
        super().__init__()
        self.enter, self.leave = enter, leave
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        torch.manual_seed(dist.get_rank())
        self.up = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)
        self.down = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.linear(F.gelu(F.linear(self.enter(self.norm(x)), self.up)), self.down)
        return self.head(x + self.leave(inner))


def tensor_parallel() -> nn.Module:
    return Parallel(Copy.apply, Reduce.apply)


def issued() -> int:
    """By the process group's own count."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return int(backend._get_sequence_number_for_group())


def difference(tape: StepTape, **options: Any) -> float:
    made = replay(tape, gradients=True, **options).gradients()
    return max(
        float((gradient - tape.fresh[name]).abs().max() / tape.fresh[name].abs().max())
        for name, gradient in made.items()
        if gradient is not None
    )


def measure(tape: StepTape) -> dict[str, Any]:
    found = {
        "ops": [op.name for op in tape.ops if op.collective is not None],
        "gaps": tape.gaps,
        "faithful": distance_from_step(tape),
        "conditional": tape.conditional,
        "joined": sorted(tape.joined),
        "data": len(tape.data),
    }
    before = issued()
    for key, dtype in (("difference", None), ("exact", torch.float64)):
        try:
            found[key] = difference(tape, dtype=dtype)
        except ReplayError as reason:
            found[key] = str(reason)
    return {**found, "issued": issued() - before}


def examine(tape: StepTape, model: nn.Module, *names: str) -> dict[str, Any]:
    patient = Patient(model=model)
    patient.names.add_module(model)
    patient.add_tape(tape)
    before = issued()
    results = {name: load(name)(patient) for name in names}
    found = {
        name: {"outcome": r.outcome, "reason": r.reason, **r.values} for name, r in results.items()
    }
    return {**found, "issued": issued() - before}


def taped_cases(rank: int, x: Tensor, y: Tensor) -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))

    def bare() -> Tensor:
        hidden = net[0](x)
        work = dist.all_reduce(hidden, async_op=True)
        beside = net[2](x)
        work.wait()
        return F.cross_entropy(net[2](F.gelu(hidden)) + beside, y)

    def maximum() -> Tensor:
        logits = net(x)
        top = logits.detach().amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        return F.cross_entropy(logits - top[:, None], y)

    def received() -> Tensor:
        batch = x.clone() if rank == 0 else torch.empty_like(x)
        dist.broadcast(batch, 0)
        dist.barrier()
        return F.cross_entropy(net(batch), y)

    def printed() -> Tensor:
        loss = F.cross_entropy(net(x), y)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        told = [None, None]
        dist.all_gather_object(told, float(mean))
        return loss

    def exchanged() -> Tensor:
        hidden = net[0](x)
        others = torch.empty_like(hidden)
        own = hidden.detach()
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, others, 1 - rank)]
        )
        for work in works:
            work.wait()
        return F.cross_entropy(net[2](hidden + others), y)

    model = tensor_parallel()
    rows = Parallel(Gather.apply, Scatter.apply)
    torch_own = lambda: F.cross_entropy(net[2](joined.all_reduce(net[0](x))), y)  # noqa: E731
    sent = lambda: F.cross_entropy(  # noqa: E731
        net[2](joined.all_to_all_single(torch.empty_like(x), net[0](x))), y
    )
    again = lambda: F.cross_entropy(checkpoint(model, x, use_reentrant=False), y)  # noqa: E731
    cases: dict[str, tuple[Callable[[], Tensor], nn.Module]] = {
        "tensor parallel": (lambda: F.cross_entropy(model(x), y), model),
        "sequence parallel": (lambda: F.cross_entropy(rows(x), y), rows),
        "checkpointed": (again, model),
        "not in a Function": (bare, net),
        "maximum": (maximum, net),
        "received batch": (received, net),
        "printed": (printed, net),
        "exchanged": (exchanged, net),
        "torch.distributed.nn": (torch_own, net),
        "all to all": (sent, net),
    }
    return {name: measure(tape_step(*case)) for name, case in cases.items()}


def overwritten_root(rank: int, x: Tensor, y: Tensor) -> dict[str, Any]:
    """The loss becomes a mean over ranks in place, after the backward pass and before the step."""
    from traindoctor.events import BackwardBegin, BackwardEnd
    from traindoctor.ground.names import Names
    from traindoctor.tape.recorder import StepRecorder

    net = nn.Linear(WIDTH, CLASSES)
    recorder = StepRecorder(0, Names(net))
    recorder.start()
    loss = F.cross_entropy(net(x), y)
    recorder.on(BackwardBegin([loss], True, 1.0))
    loss.backward()
    recorder.on(BackwardEnd([loss], 0.0))
    dist.all_reduce(loss)
    for p in net.parameters():
        dist.all_reduce(p.grad)
    tape = recorder.finish()
    recorder.close()
    return measure(tape)


def questions(rank: int, x: Tensor, y: Tensor) -> dict[str, Any]:
    """What can be asked of a tape with collectives, and what is refused."""
    model = tensor_parallel()
    tape = tape_step(lambda: F.cross_entropy(model(x), y), model)
    moved = {"down": model.down.detach() + 0.01}
    refusals = {}
    for name, options in {
        "other batch": {"batch": [x + 1, y]},
        "same batch": {"batch": [x, y]},
        "other weights": {"parameters": moved},
    }.items():
        try:
            refusals[name] = float(replay(tape, **options).loss)
        except ReplayError as reason:
            refusals[name] = str(reason)
    wrong = Parallel(Copy.apply, Doubling.apply)
    wrong_tape = tape_step(lambda: F.cross_entropy(wrong(x), y), wrong)
    names = ("tape_gradient", "functions_alone", "finite_difference")
    return {
        "loss": tape.loss,
        "replays": refusals,
        "exams": examine(tape, model, *names),
        "wrong": examine(wrong_tape, wrong, *names),
    }


def guards(rank: int, x: Tensor) -> dict[str, Any]:
    """Every way to communicate, tried by rank 0 as if traindoctor did; rank 1 does not answer."""
    if rank == 1:
        return {}
    group = dist.group.WORLD
    ways: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(x.clone()),
        "async": lambda: dist.all_reduce(x.clone(), async_op=True),
        "barrier": dist.barrier,
        "object": lambda: dist.all_gather_object([None, None], 1),
        "send": lambda: dist.send(x, 1),
        "recv": lambda: dist.recv(x.clone(), 1),
        "group's own": lambda: group.allreduce([x.clone()]),
        "functional": lambda: functional.all_reduce(x, "sum", group),
        "operator": lambda: torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name),
        "backward": lambda: Copy.apply(x.clone().requires_grad_() * 1).sum().backward(),
        "wrapper": lambda: WRAPPED(x).sum().backward(),
    }
    before, found = issued(), {}
    for name, way in ways.items():
        try:
            with Patient().undisturbed():
                with torch.enable_grad():
                    way()
            found[name] = "issued"
        except ReplayError:
            found[name] = "refused"
    exchange.install()
    try:
        with quiet():
            dist.all_reduce(x.clone())
        found["an event"] = "issued"
    except ReplayError:
        found["an event"] = "refused"
    finally:
        exchange.uninstall()
    return {"ways": found, "issued": issued() - before}


def beside_a_thread(rank: int) -> float:
    """The script's own threads communicate while our code runs in another."""
    total = torch.ones(1)
    with Patient().undisturbed():
        thread = threading.Thread(target=lambda: dist.all_reduce(total))
        thread.start()
        thread.join()
    return float(total)


def work(rank: int, out: str, meeting: str) -> None:
    global WRAPPED
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    where = "file://" + meeting
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=limit)
    WRAPPED = nn.parallel.DistributedDataParallel(nn.BatchNorm1d(WIDTH))
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    y = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    found = {
        "taped": taped_cases(rank, x, y),
        "overwritten": overwritten_root(rank, x, y),
        "questions": questions(rank, x, y),
        "guards": guards(rank, x),
        "thread": beside_a_thread(rank),
    }
    model = tensor_parallel()
    tape = tape_step(lambda: F.cross_entropy(model(x), y), model)
    dist.barrier()
    dist.destroy_process_group()
    found["afterwards"] = [difference(tape), dist.is_initialized()]
    with open(f"{out}/rank-{rank}", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], tempfile.mktemp()), nprocs=2)
