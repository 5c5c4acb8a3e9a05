"""Events become steps and numbers; faults of ours stay ours; torch is given back as it was."""

from __future__ import annotations

import contextlib
import gc
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from traindoctor.capture.hub import hub, silent
from traindoctor.capture.watch import Watch
from traindoctor.events import Event
from traindoctor.exams.frozen_targets import frozen_targets
from traindoctor.exams.gradient_flow import gradient_flow
from traindoctor.exams.outside import outside_changes
from traindoctor.record import Record, RecordWriter, open_record


@pytest.fixture(autouse=True)
def clean_hub() -> Iterator[None]:
    gc.collect()  # optimizers of other tests that still lie about would be waited for
    hub.reset()
    yield
    assert hub.sink is None, "a test left its taps in torch"
    hub.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(F.relu(self.embed(x))))


def train(
    model: nn.Module,
    optimizer: Any,
    steps: int,
    *,
    micro: int = 1,
    clip: float | None = None,
    clear: bool = True,
) -> list[torch.Tensor]:
    losses = []
    for _ in range(steps):
        for _ in range(micro):
            x = torch.randint(0, 11, (4, 6))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten()) / micro
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if clear:
            optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def recorded(folder: Path, run: Any, **settings: Any) -> Record:
    torch.manual_seed(0)
    watch = Watch(folder, budget=settings.pop("budget", 1.0), **settings)
    watch.attach()
    try:
        run()
    finally:
        watch.close(0)
    return open_record(folder)


def test_losses_norms_and_counts(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    norms: list[float] = []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            torch.stack([p.grad.double().norm() for p in model.parameters()]).norm().item()
        )
    )
    losses: list[torch.Tensor] = []
    record = recorded(tmp_path, lambda: losses.extend(train(model, optimizer, 12)), replay=False)
    assert record["loss.root"].values.tolist() == [loss.item() for loss in losses]
    found = record["grad.norm"]
    assert len(found) >= 3
    for step, value in zip(found.steps, found.values):
        assert value == pytest.approx(norms[step], rel=1e-5)
    assert record["backward.calls"].values.tolist() == [1] * 12
    assert record["grad.leftover_norm"].values.tolist() == [0.0] * 12
    assert record["mode.training"].values.tolist() == [1.0] * 12
    assert record.fact("run.steps") == 12
    assert [p["name"] for p in record.fact("model.parameters")] == [
        "embed.weight",
        "head.weight",
        "head.bias",
    ]


def test_accumulation_is_one_step(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record = recorded(tmp_path, lambda: train(model, optimizer, 5, micro=3), replay=False)
    assert record["backward.calls"].values.tolist() == [3] * 5
    assert record["forward.calls"].values.tolist() == [3] * 5
    assert record["grad.leftover_norm"].values.max() == 0


def test_gradients_left_over_are_seen(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record = recorded(tmp_path, lambda: train(model, optimizer, 8, clear=False), replay=False)
    leftover = record["grad.leftover_norm"]
    assert leftover.at(0) == 0.0
    assert (leftover.after(1).values > 0).all()


def two_optimizers(steps: int, *, clear: str) -> Callable[[], None]:
    """Two networks in turn, as in a GAN: the second's loss leaves gradients in the first as well."""

    def run() -> None:
        first, second = Net(), Net()
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (first, second)]
        for _ in range(steps):
            x = torch.randint(0, 11, (4, 6))
            for net, optimizer in zip((first, second), optimizers):
                if clear == "both" or (clear == "second" and net is second):
                    optimizer.zero_grad()
                out = net(x) if net is first else net(x) + first(x)
                F.cross_entropy(out.flatten(0, 1), x.flatten()).backward()
                optimizer.step()

    return run


def test_each_optimizer_is_asked_for_gradients_left_over_by_itself(tmp_path: Path) -> None:
    clean = recorded(tmp_path / "a", two_optimizers(6, clear="both"), replay=False)
    assert clean["grad.leftover_norm"].values.max() == 0
    dirty = recorded(tmp_path / "b", two_optimizers(6, clear="second"), replay=False)
    by_one = dirty.layers("grad.leftover_by_optimizer")
    assert by_one is not None
    first, second = (by_one.layer(name).finite().values for name in by_one.layers)
    assert (first[1:] > 0).all()
    assert second.max() == 0


def test_gradients_by_autograd_grad_are_not_held_against_those_of_the_last_step(
    tmp_path: Path,
) -> None:
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    try:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            x = torch.randint(0, 11, (4, 6))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            for p, g in zip(
                model.parameters(), torch.autograd.grad(loss, list(model.parameters()))
            ):
                p.grad = g
            optimizer.step()
        for step in watch.patient.tapes:
            tape = watch.patient.tapes[step]
            assert all(torch.equal(tape.fresh[name], g) for name, g in tape.given.items())  # type: ignore[arg-type]
    finally:
        watch.close("done")


def master_weights(steps: int, *, written_over: bool) -> Callable[[], None]:
    """A model in bfloat16 whose optimizer holds float32 copies; `written_over`: they are filled from it before each step."""

    def run() -> None:
        model = Net().bfloat16()
        masters = [p.detach().float().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(masters, 1e-4 if written_over else 0.1)
        for _ in range(steps):
            x = torch.randint(0, 11, (4, 6))
            model.zero_grad()
            F.cross_entropy(model(x).float().flatten(0, 1), x.flatten()).backward()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters()):
                    if written_over:
                        master.copy_(p)
                    master.grad = p.grad.float()  # type: ignore[union-attr]
                optimizer.step()
                for master, p in zip(masters, model.parameters()):
                    p.copy_(master)

    return run


@pytest.mark.parametrize("written_over", [False, True])
def test_master_weights_are_neither_missing_nor_left_over(
    tmp_path: Path, written_over: bool
) -> None:
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        master_weights(40, written_over=written_over)()
        undone = outside_changes(watch.patient).values["undone"]
    finally:
        watch.close("done")
    record = open_record(tmp_path)
    assert record["grad.leftover_norm"].values.max() == 0
    assert (undone > 0.5) == written_over
    if not written_over:
        assert record.fact("optimizer.coverage")["num_missing"] == 0


def test_a_later_stage_over_other_parameters_is_taped_again(tmp_path: Path) -> None:
    def stages(second: str) -> Callable[[], None]:
        def run() -> None:
            model = Net()
            train(model, torch.optim.SGD(model.parameters(), 0.1), 8)
            later = model.head if second == "head" else model
            train(model, torch.optim.SGD(later.parameters(), 0.1), 8)

        return run

    assert recorded(tmp_path / "a", stages("head")).fact("stages.taped") == [1]
    assert recorded(tmp_path / "b", stages("all")).fact("stages.taped") is None


@pytest.mark.parametrize("other_loss", [False, True])
def test_a_later_stage_with_another_loss_is_taped_again(tmp_path: Path, other_loss: bool) -> None:
    """Fine-tuning all that was trained. An optimizer that is only made anew (every epoch) begins nothing."""

    def run() -> None:
        model = Net()
        for stage in range(4):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(8):
                x = torch.randint(11, (4, 8))
                optimizer.zero_grad()
                if stage and other_loss:
                    model(x).log_softmax(-1)[..., 0].mean().sigmoid().backward()
                else:
                    F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
                optimizer.step()

    assert recorded(tmp_path, run).fact("stages.taped") == ([1] if other_loss else None)


@pytest.mark.parametrize("fault", [False, True])
def test_features_that_the_model_made_without_gradient(tmp_path: Path, fault: bool) -> None:
    """A cache of features: whoever takes the cached ones for those of this step trains one tower only."""
    towers = nn.ModuleDict({"one": nn.Linear(6, 4), "two": nn.Linear(6, 4)})
    both = Both(towers)
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD(both.parameters(), 0.1)
        for _ in range(25):
            x, y = torch.randn(5, 6), torch.randn(5, 6)
            with torch.no_grad():
                cached = both(x, y)[1]
            optimizer.zero_grad()
            a, b = both(x, y)
            scores = a @ (cached if fault else b).t()
            F.cross_entropy(scores, torch.arange(5)).backward()
            optimizer.step()
        found = gradient_flow(watch.patient).values
    finally:
        watch.close("done")
    assert found["blocked"] == (2 if fault else 0)
    if fault:
        assert found["cuts"][0]["kind"] == "no_grad"


class Both(nn.Module):
    def __init__(self, towers: nn.ModuleDict) -> None:
        super().__init__()
        self.towers = towers

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.towers["one"](x), self.towers["two"](y)


def test_a_long_rollout_before_the_step_is_not_taped(tmp_path: Path) -> None:
    model = nn.Linear(6, 4)
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(25):
            with torch.no_grad():
                for _ in range(20):
                    model(torch.randn(1, 6))
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
        tapes = watch.patient.tapes.values()
        assert [sum(op.kind == "linear" for op in tape.ops) for tape in tapes] == [1] * len(tapes)
    finally:
        watch.close("done")


def test_a_second_stage_of_bare_tensors_is_taped_from_its_beginning(tmp_path: Path) -> None:
    """Where no module is called a step's end may be known by the next one's first backward pass: too late for its tape."""
    x = torch.randn(8, 4)
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        for _ in range(2):
            weights = [torch.randn(4, 4, requires_grad=True), torch.randn(4, 1, requires_grad=True)]
            optimizer = torch.optim.SGD(weights, lr=0.01)
            for _ in range(30):
                optimizer.zero_grad()
                for _ in range(2):
                    ((x @ weights[0]).tanh() @ weights[1]).square().mean().backward()
                optimizer.step()
        tapes = list(watch.patient.every_tape.values())
    finally:
        watch.close("done")
    latest = max((tape for tape in tapes if tape.stage == 1), key=lambda tape: tape.step)
    assert all(root.ref is not None for root in latest.roots)
    assert len(latest.roots) == 2


@pytest.mark.parametrize("turns", [1, 5])
def test_every_optimizer_that_takes_turns_is_taped(tmp_path: Path, turns: int) -> None:
    """Two networks, one stepping `turns` times as often: the other one's step is taped as well."""
    first, second = Net(), Net()
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (first, second)]
        for _ in range(5):
            train(first, optimizers[0], turns)
            train(second, optimizers[1], 1)
        tapes = watch.patient.tapes
        assert {tape.stage for tape in tapes.values()} == {0, 1}
        for step, tape in tapes.items():
            assert tape.stage == int(step % (turns + 1) == turns)
        with watch.patient.at_stage(1):
            assert {tape.stage for tape in watch.patient.tapes.values()} == {1}
        assert watch.patient.tapes is tapes
    finally:
        watch.close("done")


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_model_that_trains_in_evaluation_mode_is_taped(tmp_path: Path, evaluates: bool) -> None:
    """An evaluation that keeps its gradients begins no tape of a step."""
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(30):
            x = torch.randint(11, (4, 8))
            if evaluates:
                model.eval()
                F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            model.train(evaluates)
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            optimizer.step()
        tapes = watch.patient.tapes
        assert len(tapes) >= 2
        assert all(sum(op.kind == "cross_entropy" for op in t.ops) == 1 for t in tapes.values())
    finally:
        watch.close("done")


def test_optimizers_that_step_together_are_one_stage(tmp_path: Path) -> None:
    def run() -> None:
        model = Net()
        parts = [torch.optim.SGD([p], 0.1) for p in model.parameters()]
        for _ in range(30):
            loss = model(torch.randint(11, (4, 8))).square().mean()
            for part in parts:
                part.zero_grad()
            loss.backward()
            for part in parts:
                part.step()

    assert recorded(tmp_path, run).fact("stages.taped") is None


def test_clipping_is_seen_from_before(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    record = recorded(tmp_path, lambda: train(model, optimizer, 8, clip=0.01), replay=False)
    assert record["clip.limit"].values.tolist() == [0.01] * 8
    assert (record["grad.norm"].values > 0.05).all()
    assert record["grad.norm_clipped"].values == pytest.approx([0.01] * 8, rel=1e-3)


def test_optimizers_beside_each_other_share_a_step(tmp_path: Path) -> None:
    model = Net()

    def run() -> None:
        first = torch.optim.SGD(model.embed.parameters(), 0.1)
        second = torch.optim.Adam(model.head.parameters(), 0.1)
        for _ in range(6):
            x = torch.randint(0, 11, (4, 6))
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()

    record = recorded(tmp_path, run, replay=False)
    assert record["loss.root"].steps.tolist() == list(range(6))


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_later_step_is_taped_after_steps_that_nobody_heard(
    tmp_path: Path, by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(tmp_path, budget=1.0)
    monkeypatch.setattr(watch.attention, "attentive", lambda step: step in (0, 1, 2, 20))
    monkeypatch.setattr(watch.keeping, "wants", lambda step: False)
    watch.attach()
    try:
        model = Net()
        optimizer = None if by_hand else torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(24):
            x = torch.randint(0, 11, (4, 6))
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
            if optimizer is not None:
                optimizer.step()
            with torch.no_grad():
                for p in model.parameters() if by_hand else ():
                    p -= 0.1 * p.grad
            model.zero_grad()
        assert 20 in watch.patient.tapes
    finally:
        watch.close("done")


@pytest.mark.parametrize("attacked", [False, True])
def test_plain_tensors_that_an_optimizer_holds_are_trained_by_grad(
    tmp_path: Path, attacked: bool
) -> None:
    """The gradient of a batch (an attack, a penalty) is no training pass."""
    model = Net()

    def run() -> None:
        leaves = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
        optimizer = torch.optim.SGD(leaves.values(), 0.1)
        for _ in range(4):
            x = torch.randint(0, 11, (4, 6))
            if attacked:
                noise = torch.zeros(4, 6, requires_grad=True)
                torch.autograd.grad(noise.square().sum(), noise)
            scores = torch.func.functional_call(model, leaves, (x,))
            loss = F.cross_entropy(scores.flatten(0, 1), x.flatten())
            for leaf, g in zip(leaves.values(), torch.autograd.grad(loss, list(leaves.values()))):
                leaf.grad = g
            optimizer.step()

    record = recorded(tmp_path, run)
    assert record.fact("run.steps") == 4
    assert set(record["backward.calls"].values) == {1.0}
    assert record["loss.root"].steps.tolist() == list(range(4))


def test_a_script_without_an_optimizer_counts_backward_passes(tmp_path: Path) -> None:
    def run() -> None:
        w = torch.randn(4, 3, requires_grad=True)
        for _ in range(7):
            loss = (torch.randn(5, 4) @ w).square().mean()
            (gradient,) = torch.autograd.grad(loss, [w])
            with torch.no_grad():
                w.sub_(0.1 * gradient)

    record = recorded(tmp_path, run, replay=False)
    assert record["loss.root"].steps.tolist() == list(range(7))
    assert record.fact("run.steps") == 0
    assert record.fact("run.backwards") == 7


def test_an_optimizer_that_never_steps_is_counted_by_passes_in_the_end(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> None:
        hub.optimizers[optimizer] = ()
        for _ in range(50):
            x = torch.randint(0, 11, (2, 3))
            F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()

    record = recorded(tmp_path, run, replay=False)
    assert record.fact("run.steps") == 0
    assert record.fact("run.backwards") == 50
    assert len(record["loss.root"]) == 11


def test_graphs_kept_alive_are_counted(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = []

    def run() -> None:
        total: Any = 0.0
        for _ in range(20):
            x = torch.randint(0, 11, (2, 3))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            total = total + loss
            loss.backward(retain_graph=False)
            optimizer.step()
            optimizer.zero_grad()
        kept.append(total)

    record = recorded(tmp_path, run, replay=False)
    assert record["graphs.old"].values[-1] == 12
    healthy = recorded(tmp_path / "healthy", lambda: train(model, optimizer, 20), replay=False)
    assert healthy["graphs.old"].values.max() == 0


class Broken:
    """A probe with a planted fault."""

    name: ClassVar[str] = "broken"
    gives: ClassVar[tuple[str, ...]] = ()
    cost: ClassVar[Any] = "free"
    every: ClassVar[int] = 1

    def __init__(self, where: str) -> None:
        self.where = where
        self.calls = 0

    def on(self, event: Event, *, due: bool) -> None:
        if self.where == "on":
            self.fail()

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self.where == "close":
            self.fail()

    def finish(self, record: RecordWriter) -> None:
        if self.where == "finish":
            self.fail()

    def fail(self) -> None:
        self.calls += 1
        raise RuntimeError("planted")


@pytest.mark.parametrize("where", ["on", "close", "finish"])
def test_a_broken_probe_is_taken_off_and_the_run_goes_on(tmp_path: Path, where: str) -> None:
    from traindoctor.probes.loss import Loss

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Net()
        return train(model, torch.optim.SGD(model.parameters(), 0.1), 6)

    bare = run()
    broken = Broken(where)
    ours: list[torch.Tensor] = []
    record = recorded(tmp_path, lambda: ours.extend(run()), probes=[broken, Loss()], replay=False)
    assert [loss.item() for loss in ours] == [loss.item() for loss in bare]
    assert broken.calls == 1
    assert len(record["loss.root"]) == 6
    (note,) = record.notes
    assert note.level == "fault"
    assert "planted" in note.text
    assert "measuring 'broken' failed and was switched off" in note.text


def test_a_broken_listener_is_taken_off(tmp_path: Path) -> None:
    watch = Watch(tmp_path, replay=False, probes=[])
    watch.listeners.append(lambda step: 1 / 0)  # type: ignore[arg-type,return-value]
    watch.attach()
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    watch.close(0)
    assert len(watch.faults) == 1
    assert open_record(tmp_path).fact("run.steps") == 3


def test_torch_is_given_back(tmp_path: Path) -> None:
    places = [
        (nn.Module, "__call__"),
        (nn.Module, "zero_grad"),
        (torch.autograd, "backward"),
        (torch.autograd, "grad"),
        (F, "cross_entropy"),
        (F, "embedding"),
        (nn.utils, "clip_grad_norm_"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.optim.Optimizer, "__init__"),
        (torch.Tensor, "item"),
    ]
    before = [getattr(owner, name) for owner, name in places]
    assert "item" not in vars(torch.Tensor)
    watch = Watch(tmp_path, probes=[], replay=False)
    watch.attach()
    assert [getattr(o, n) for o, n in places] != before
    watch.close(0)
    assert [getattr(o, n) for o, n in places] == before
    assert "item" not in vars(torch.Tensor)


def test_our_own_calls_make_no_events(tmp_path: Path) -> None:
    watch = Watch(tmp_path, probes=[], replay=False)
    seen: list[Event] = []
    watch.receive = seen.append  # type: ignore[method-assign]
    watch.attach()
    model = Net()
    with silent():
        model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    assert not seen
    model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    assert [type(event).__name__ for event in seen] == [
        "ForwardBegin",
        "TokensEmbedded",
        "ForwardEnd",
        "BackwardBegin",
        "BackwardEnd",
    ]
    watch.close(0)


def test_a_checkpoints_inner_pass_is_no_step(tmp_path: Path) -> None:
    from torch.utils.checkpoint import checkpoint

    watch = Watch(tmp_path, probes=[], replay=False)
    seen: list[Event] = []
    watch.receive = seen.append  # type: ignore[method-assign]
    watch.attach()
    layer = nn.Linear(4, 4)
    for reentrant in (True, False):
        x = torch.randn(2, 4, requires_grad=True)
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    watch.close(0)
    assert [type(event).__name__ for event in seen].count("BackwardBegin") == 2


def test_a_scaler_tells_its_factor_and_its_skips(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []

    def run() -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1000)
        for step in range(8):
            x = torch.randint(0, 11, (2, 3))
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            losses.append(loss.item())
            scaler.scale(loss * (float("inf") if step == 4 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    record = recorded(tmp_path, run, replay=False)
    assert record.fact("run.steps") == 7
    root = record["loss.root"]
    assert len(root) == 8
    assert root.values[:4] == pytest.approx(losses[:4], rel=1e-6)
    assert record["scaler.skipped"].values.sum() == 1
    assert record["scaler.scale"].values[-1] == 32.0


def test_a_tape_is_taken_and_the_next_run_starts_clean(tmp_path: Path) -> None:
    model = Net()
    torch.manual_seed(0)
    watch = Watch(tmp_path, probes=[])
    watch.attach()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 4)
    watch.close(0)
    assert sorted(watch.patient.tapes) == [0, 1, 2]
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_teacher_with_dropout_is_taped_with_the_student(
    tmp_path: Path, training: bool, rests: bool
) -> None:
    """Once more after many steps, also where those are not listened to."""
    student, teacher = Net(), Net().train(training).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    watch = Watch(tmp_path, budget=1.0)
    if rests:
        watch.attention.attentive = lambda step: step < 3  # type: ignore[method-assign]
    watch.attach()
    try:
        for _ in range(30):
            x = torch.randint(0, 11, (4, 6))
            with torch.no_grad():
                soft = teacher(x).softmax(-1)
            F.kl_div(student(x).log_softmax(-1), soft, reduction="batchmean").backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        watch.close(0)
    result = frozen_targets(watch.patient)
    assert result.done, result.reason
    assert result.values["dropouts"] == (1 if training else 0)
    assert open_record(tmp_path)["mode.beside_training"].last == float(training)


def test_watch_is_a_block_or_is_closed(tmp_path: Path) -> None:
    import traindoctor

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    doctor = traindoctor.watch(model, optimizer, out=tmp_path / "closed", after=0.0, quiet=True)
    train(model, optimizer, 3)
    assert doctor.close() is doctor.diagnosis
    with traindoctor.watch(model, optimizer, out=tmp_path / "block", after=0.0, quiet=True):
        train(model, optimizer, 3)
    for name in ("closed", "block"):
        assert open_record(tmp_path / name).fact("run.steps") == 3


def test_an_evaluation_is_heard_while_probes_rest(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(0)
    watch = Watch(tmp_path, budget=1.0, replay=False)
    watch.attention.attentive = lambda step: step % 16 == 0  # type: ignore[method-assign]
    watch.attach()
    try:
        for _ in range(6):
            train(model, optimizer, 1)
            model.eval()
            with torch.no_grad():
                x = torch.randint(0, 11, (4, 6))
                F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            model.train()
        train(model, optimizer, 1)
    finally:
        watch.close(0)
    record = open_record(tmp_path)
    assert record["loss.eval"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert record["mode.eval_training"].values.tolist() == [0.0] * 6
    assert record["target.valid"].steps.tolist() == [0]


def test_a_profiler_written_in_c_goes_on(tmp_path: Path) -> None:
    import cProfile

    def run() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        profile = cProfile.Profile()
        profile.enable()
        train(model, optimizer, 3)
        profile.disable()
        assert any("cross_entropy" in str(entry.code) for entry in profile.getstats())

    record = recorded(tmp_path, run, replay=False)
    assert record.fact("run.steps") == 3


def test_a_pass_from_the_edge_of_a_graph_is_the_scripts_affair(tmp_path: Path) -> None:
    def run() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            loss = model(torch.randint(0, 11, (4, 6))).square().mean()
            torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones(()))
            optimizer.step()

    assert recorded(tmp_path, run).fact("run.steps") == 2


def test_a_step_that_raises_hides_no_later_one(tmp_path: Path) -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise MemoryError

    def run() -> None:
        model = Net()
        with contextlib.suppress(MemoryError):
            train(model, Fails(model.parameters(), 0.1), 1)
        train(model, torch.optim.SGD(model.parameters(), 0.1), 5)

    assert recorded(tmp_path, run, replay=False).fact("run.steps") == 5


def test_what_the_scripts_signal_handler_raises_is_the_scripts(tmp_path: Path) -> None:
    def late(*_: object) -> None:
        raise TimeoutError("the script's own")

    watch = Watch(tmp_path, replay=False, probes=[])
    watch.listeners.append(lambda step: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, late)
    watch.attach()
    try:
        model = Net()
        with pytest.raises(TimeoutError, match="own"):
            train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
        assert watch.attached
    finally:
        signal.signal(signal.SIGUSR1, before)
        watch.close(0)
