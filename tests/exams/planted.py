"""One planted fault per exam of the table, each beside the same patient without it."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chains
import torch
import torch.nn.functional as F
from hand_written import C, D, Loss, N
from patients import patient_of, tape_steps
from small_transformer import B, Model, T, next_token, reverse, text
from torch import Tensor, nn

from short_runs import run
from single_step import tape_step
from traindoctor.exams.kept_tensors import alive
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.snapshot import StepLog
from traindoctor.tape.ops import Read


def transformer(
    loss: Callable[[nn.Module, Tensor], Tensor] = next_token, *, steps: int = 1, **faults: Any
) -> Patient:
    torch.manual_seed(0)
    return tape_steps(Model(**faults), loss, text, steps=steps)


def unordered(*, places: bool) -> Patient:
    """A task in which order counts, late enough that a healthy model has begun to use it."""
    return transformer(reverse, steps=12, mask="none", places=places)


def forecaster(*, left: int) -> Patient:
    """The next number of a series by a convolution over three, padded on the left by so many, on the right by the rest."""
    torch.manual_seed(0)
    model, series = nn.Conv1d(1, 1, 3), torch.randn(B, 12)

    def loss() -> Tensor:
        said = model(F.pad(series[:, None, :-1], (left, 2 - left)))
        return F.mse_loss(said[:, 0], series[:, 1:])

    return patient_of(model, loss)


def patches(*, batch_first: bool) -> Patient:
    """One number from five patches of a series; the last one answers."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=batch_first)
    model = nn.ModuleList([nn.Linear(4, 16), layer, nn.Linear(16, 1)])
    x, y = torch.randn(B, 20), torch.randn(B, 1)

    def loss() -> Tensor:
        into, layer, out = model
        return F.mse_loss(out(layer(into(x.unfold(1, 4, 4)))[:, -1]), y)

    return patient_of(model, loss)


def one_block(times: int) -> Patient:
    torch.manual_seed(0)
    model = Model()
    if times > 1:
        model.mlp = nn.ModuleList([model.mlp[0]] * times)
    return tape_steps(model, next_token, text)


def two_ahead(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :T]).flatten(0, 1), ids[:, 2 : T + 2].flatten())


def padded(ignored: int) -> Callable[[nn.Module, Tensor], Tensor]:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids.clone()
        for row in range(B):
            ids[row, 6 + row :] = 0
        scores, targets = model(ids[:, :T]), ids[:, 1 : T + 1]
        return F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=ignored)

    return loss


class OverTime(nn.Module):
    """LayerNorm over places where features are meant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LayerNorm(T)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def classifier(
    loss: Callable[[nn.Sequential, Tensor, Tensor], Tensor], *, micro: tuple[int, ...] = (N,)
) -> Patient:
    """A small MLP; `loss(model, x, y)` on as many micro-batches of so many rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, C))
    batches = [(torch.randn(rows, D), torch.randint(C, (rows,))) for rows in micro]
    return patient_of(model, [functools.partial(loss, model, x, y) for x, y in batches])


class LowRank(nn.Module):
    """x + up(down(x)), a head behind it; what starts at zero is said by name."""

    def __init__(self, zero: tuple[str, ...]) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(D, 3, bias=False), nn.Linear(3, D, bias=False)
        self.head = nn.Linear(D, C)
        for name in zero:
            nn.init.zeros_(self.get_submodule(name).weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.up(self.down(x)))


def low_rank(*zero: str, steps: int = 12) -> Patient:
    torch.manual_seed(0)
    made = [(torch.randn(N, D), torch.randint(C, (N,))) for _ in range(steps)]
    return tape_steps(
        LowRank(zero),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        lambda step: made[step],
        steps=steps,
    )


def taught(role: str = "teacher", *, training: bool = True, steps: int = 21) -> Patient:
    """A model beside the one that learns, with dropout: a frozen teacher, a moving average, an ensemble of passes,
    or features that a trained head works on."""
    torch.manual_seed(0)
    beside = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5), nn.Linear(D, D)).train(training)
    beside.requires_grad_(False)
    made = [torch.randn(N, D) for _ in range(steps)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            says = sum(beside(x) for _ in range(4 if role == "ensemble" else 1))
            if role == "average":
                for mine, theirs in zip(beside.parameters(), model.parameters()):
                    mine.lerp_(theirs, 0.01)
        if role == "features":
            return F.mse_loss(model(says), x)
        return F.mse_loss(model(x), says)

    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D))
    return tape_steps(model, loss, lambda step: made[step], steps=steps)


def hoarding(*, graphs: bool, steps: int = 30) -> Patient:
    """A running mean of the outputs, with the graph of every step behind it or without."""
    of_other_tests = alive()  # in this process, and none of this patient's
    torch.manual_seed(0)
    mean = torch.zeros(D)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        nonlocal mean
        made = model(x)
        mean = 0.9 * mean + 0.1 * (made if graphs else made.detach()).mean(0)
        return made.square().mean()

    model = nn.Linear(D, D)
    patient = tape_steps(model, loss, lambda step: torch.randn(N, D))
    for _ in range(steps):
        loss(model, torch.randn(N, D))
    patient.facts["the script's own"] = [loss]  # its closure holds the mean
    patient.facts["not the script's"] = of_other_tests
    return patient


def by_function(fault: str) -> Patient:
    return classifier(lambda model, x, y: Loss.apply(model(x), y, fault))


def scaled(factor: float) -> Callable[[nn.Sequential, Tensor, Tensor], Tensor]:
    return lambda model, x, y: F.cross_entropy(model(x), y) * factor


def printing(*, another: bool) -> Patient:
    """The script prints the cross-entropy; it optimises that, or a square."""

    def loss(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
        logits = model(x)
        printed = F.cross_entropy(logits, y)
        return (logits - 1).square().mean() if another else printed

    patient = classifier(loss)
    assert patient.tape is not None
    [printed] = [op.outputs[0] for op in patient.tape.ops if op.name == "cross_entropy"]
    assert printed is not None
    patient.tape.reads[:] = [Read(printed, 0.0)]
    return patient


def cut_in_the_middle(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model[2](model[1](model[0](x)).detach()), y)


def softmax_before_the_loss(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).softmax(-1), y)


def out_of_range(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    """1e6 is more than float16 holds."""
    return F.cross_entropy(model(x * 1e6) * 1e-6, y)


def in_half(loss_scale: float) -> Callable[[nn.Sequential, Tensor, Tensor], Tensor]:
    """A part in float16; the gradient that comes back to it is as large as the scale."""

    def loss(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).half().float(), y) * loss_scale

    return loss


def one_by_one(model: nn.Module, *shape: int) -> Patient:
    """The examples of a step, each its own call of the model."""
    torch.manual_seed(0)
    patient = Patient(model=model)
    patient.facts["examples"] = (model, [((torch.randn(1, *shape),), {}) for _ in range(8)])
    return patient


def call_bound() -> Patient:
    """Forty narrow layers: nearly all of the time goes into calling them, and a batch calls them once."""
    return one_by_one(nn.Sequential(*(nn.Linear(8, 8) for _ in range(40))), 8)


def work_bound() -> Patient:
    """One wide layer over many places: a batch has the same work to do as its examples."""
    return one_by_one(nn.Linear(256, 256), 512, 256)


def acting(how: str) -> Patient:
    """A step of eight calls with one example each: an environment's, or a loop over examples."""
    patient = call_bound()
    model, calls = patient.facts["examples"]

    def loss() -> Tensor:
        total = torch.zeros(())
        state = calls[0][0][0]
        for (example,), _ in calls:
            scores = model(state if how in ("sampled", "numbers") else example)
            if how == "sampled":
                chosen = torch.multinomial(scores.softmax(-1), 1)
                state = state.roll(int(chosen), -1)
                total = total - scores.log_softmax(-1).gather(1, chosen).sum()
            elif how == "numbers":
                chosen = torch.normal(scores.detach(), 1.0)
                state = torch.from_numpy(chosen.numpy() * 0.1)
                total = total + (scores - chosen).square().sum()
            else:
                dropped = F.dropout(scores, 0.1)
                right = torch.tensor([3])
                total = total + F.cross_entropy(dropped, right)
                (dropped.argmax(-1) == right).sum().item()
                float(total.detach())
        return total

    patient.add_tape(tape_step(loss, model))
    return patient


def faint(factor: float) -> Patient:
    """Scores that hardly move, however the weights do."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.arange(8) % 3
    x = x + 4 * F.one_hot(y, 4)
    return patient_of(model, lambda: F.cross_entropy(model(x) * factor, y))


def kept_batches(*, apart: bool) -> Patient:
    """Batches whose targets depend on their inputs, or do not."""
    torch.manual_seed(0)
    patient = tape_steps(chains.Model(width=2), chains.loss, chains.chain)
    logs = {step: chains.kept(step, apart=apart) for step in range(22)}
    patient.snapshot = SimpleNamespace(logs=logs)
    return patient


def paired(*, mixed: bool) -> Patient:
    """Rows of numbers with a target each; the targets come in another order, or in the same."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(8, 4), torch.randn(8, 2)
    return patient_of(model, lambda: F.mse_loss(model(x), y.flip(0) if mixed else y))


def blanks(*, shuffled: bool, named: bool = False) -> Patient:
    """Recipes of eight tokens with two blanks; their order tells which blank is which, or nothing.

    `named`: the step's mask was seen; else the blanks are known by their token alone.
    """
    generator = torch.Generator().manual_seed(0)
    recipes = torch.randperm(32, generator=generator).view(4, 8)
    logs, steps = {}, 46
    for step in range(steps):
        rows = recipes[torch.randint(4, (32,), generator=generator)]
        if shuffled:
            rows = rows.gather(1, torch.rand(32, 8, generator=generator).argsort(1))
        hide = torch.rand(32, 8, generator=generator).argsort(1) < 2
        ids, y = rows.masked_fill(hide, 32), rows[hide]
        data = {("tokens", 0, 0): ids, ("loss", 0, 0): y}
        logs[step] = StepLog(step, data | ({("variable", 0, 0): hide} if named else {}))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(33, 8), nn.Linear(8, 32))
    patient = patient_of(model, lambda: F.cross_entropy(model(ids)[hide], y))
    patient.snapshot = SimpleNamespace(logs=logs)
    return patient


def kept_numbers(*, apart: bool) -> Patient:
    """Signals and numbers that depend on them, or on another row's."""
    logs = {step: chains.measured(step, apart=apart) for step in range(46)}
    return Patient(snapshot=SimpleNamespace(logs=logs))


def writer(step: int) -> Patient:
    """Each token is followed by the one `step` further on: 0 says the same for ever."""
    torch.manual_seed(0)
    size, length = 97, 24
    table = nn.Embedding(size, size)
    follows = (torch.arange(size) + step) % size
    nn.init.zeros_(table.weight)
    # Sampled at temperature 1, an eighth of the chance is with the others.
    table.weight.data[torch.arange(size), follows] = 6.5
    ids = torch.randint(size, (8, length + 1))
    return patient_of(
        table, lambda: F.cross_entropy(table(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    )


@functools.cache
def short_run(
    make: Callable[..., torch.optim.Optimizer],
    *,
    rate: float,
    micro: int = 1,
    limit: float | None = 50.0,
    falling: float = 1.0,
    shrink: float | None = None,
    treat: Callable[[list[nn.Parameter]], None] | None = None,
    dtype: torch.dtype = torch.float32,
    wide: float = 1.0,
    **settings: Any,
) -> Patient:
    """70 steps of a real run with its snapshots; exams leave it as it is, so that rows may share one."""

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, falling)

    with tempfile.TemporaryDirectory() as folder:
        watch, _, _ = run(
            Path(folder),
            lambda parameters: make(parameters, lr=rate, **settings),
            micro=micro,
            limit=limit,
            schedule=schedule,
            shrink=shrink,
            treat=treat,
            dtype=dtype,
            wide=wide,
        )
    assert watch is not None
    return watch.patient
