"""A taped step gives its loss and its gradients again, bit for bit, whatever the step is made of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from single_step import tape_step
from traindoctor.errors import ReplayError
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.ground.names import Names
from traindoctor.tape.execute import evaluate, replay
from traindoctor.tape.faithful import distance_from_step
from traindoctor.tape.tape import StepTape

V, D, T, B = 13, 8, 6, 3


class Decoder(nn.Module):
    """A small language model: embedding, positions, one block with dropout, tied head."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.token = nn.Embedding(V, D)
        self.position = nn.Embedding(T, D)
        self.block = block
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.block(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(B, T, 3, 2, D // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, -torch.inf)
        return x + self.drop((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)[:, None]
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=True)[:, 0]


class Experts(nn.Module):
    """Top-1 routing with index_add, as mixtures of experts are written."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 3)
        self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out.index_add_(0, rows, expert(flat[rows]) * weight[rows, None])
        return x + out.view_as(x)


class OverTime(nn.Module):
    """BatchNorm, a recurrent net with dropout, and a buffer that the step writes to through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(T)
        self.net = nn.GRU(D, D, num_layers=2, dropout=0.3, batch_first=True)
        self.register_buffer("memory", torch.ones(2, D))

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.net(self.norm(x))
        slot = self.memory.clone()
        row = slot[1]
        row.copy_(x.mean((0, 1)))
        row += 1.0
        return x + slot.sum(0)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(D, D), nn.Dropout(0.2), nn.GELU(), nn.Linear(D, D))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=self.reentrant)


class StraightThrough(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        with torch.no_grad():
            mean = h.mean()
        return h + (h.round() - h).detach() - mean


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "fused attention": FusedAttention,
    "encoder layer": lambda: nn.TransformerEncoderLayer(D, 2, 16, 0.1, batch_first=True),
    "experts": Experts,
    "over time": OverTime,
    "checkpoint, reentrant": lambda: Checkpointed(True),
    "checkpoint": lambda: Checkpointed(False),
    "straight-through": StraightThrough,
}


def batch() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(V, (B, T + 1))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module) -> Callable[[], Tensor]:
    x, y = batch()
    return lambda: F.cross_entropy(model(x).view(-1, V), y.reshape(-1))


def assert_exact(tape: StepTape) -> None:
    assert tape.gaps == []
    assert distance_from_step(tape) == 0.0
    found = replay(tape, gradients=True).gradients()
    for name, gradient in tape.given.items():
        if gradient is None:
            assert found.get(name) is None
        else:
            assert torch.equal(found[name], gradient), name


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("block", BLOCKS)
def test_loss_and_gradients_come_again_bit_for_bit(block: str) -> None:
    model = Decoder(BLOCKS[block]())
    tape = tape_step(loss_of(model), model)
    assert_exact(tape)
    double = float(replay(tape, dtype=torch.float64).loss)
    assert double == pytest.approx(tape.loss, rel=2e-6)
    assert_exact(tape)  # a replay leaves the tape as it was


@pytest.mark.parametrize("block", ["attention", "over time", "checkpoint, reentrant"])
def test_taping_leaves_no_trace(block: str) -> None:
    made = []
    for taped in (False, True):
        torch.manual_seed(1)
        model = Decoder(BLOCKS[block]())
        loss_function = loss_of(model)
        if taped:
            replay(tape_step(loss_function, model, keep_gradients=True), gradients=True).gradients()
        else:
            loss_function().backward()
        gradients = [p.grad for p in model.parameters()]
        made.append((gradients, list(model.buffers()), torch.get_rng_state()))
    for one, other in zip(*made):
        assert all(torch.equal(a, b) for a, b in zip(one, other))


def test_autocast_and_accumulation() -> None:
    model = Decoder(Attention())

    def micro() -> Callable[[], Tensor]:
        x, y = batch()

        def compute() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x)
            return F.cross_entropy(logits.float().view(-1, V), y.reshape(-1)) / 3

        return compute

    tape = tape_step([micro() for _ in range(3)], model)
    assert len(tape.roots) == 3
    assert_exact(tape)


def test_weights_in_bfloat16() -> None:
    model = Decoder(Attention()).bfloat16()
    assert_exact(tape_step(loss_of(model), model))


def test_gradients_of_earlier_steps_are_told_apart() -> None:
    model = Decoder(Attention())
    tape_step(loss_of(model), model, keep_gradients=True)
    tape = tape_step(loss_of(model), model, keep_gradients=True)
    reference = replay(tape, gradients=True).gradients()
    for name, fresh in tape.fresh.items():
        torch.testing.assert_close(fresh, reference[name], rtol=1e-4, atol=1e-6)
        assert not torch.allclose(tape.given[name], reference[name])


def test_other_weights_tokens_and_values_can_be_put_in() -> None:
    model = Decoder(FusedAttention()).eval()
    model.block.q.weight.data.zero_()
    x, y = batch()
    tape = tape_step(lambda: F.cross_entropy(model(x).view(-1, V), y.reshape(-1)), model)

    doubled = {"position.weight": 2 * model.position.weight.detach()}
    with torch.no_grad():
        old = model.position.weight.clone()
        model.position.weight.mul_(2)
        torch.set_rng_state(_dropout_state(tape))
        expected = F.cross_entropy(model(x).view(-1, V), y.reshape(-1))
        model.position.weight.copy_(old)
    assert torch.equal(replay(tape, parameters=doubled).loss, expected)

    site = next(site for site in input_sites(tape) if site.kind == "data")
    other = (x + 1) % V
    with torch.no_grad():
        torch.set_rng_state(_dropout_state(tape))
        expected = F.cross_entropy(model(other).view(-1, V), y.reshape(-1))
    assert torch.equal(replay(tape, indices={site.op: other}).loss, expected)

    (loss_site,) = loss_sites(tape)
    uniform = torch.zeros(B * T, V)
    replayed = replay(tape, substitute={loss_site.logits: uniform}, want=[loss_site.logits])
    assert float(replayed.loss) == pytest.approx(torch.log(torch.tensor(float(V))).item())
    assert replayed[loss_site.logits] is uniform


def _dropout_state(tape: StepTape) -> Tensor:
    return next(op.rng[0][1] for op in tape.ops if op.name == "scaled_dot_product_attention")


def test_another_batch_goes_through_the_same_step() -> None:
    model = Decoder(nn.Linear(D, D))
    x, y = batch()
    tape = tape_step(lambda: F.cross_entropy(model(x).view(-1, V), y.reshape(-1)), model)
    assert len(tape.data) == 2
    x2, y2 = batch()
    expected = F.cross_entropy(model(x2).view(-1, V), y2.reshape(-1))
    assert torch.equal(replay(tape, batch=(x2, y2)).loss, expected)
    with pytest.raises(ReplayError, match="2 data tensors"):
        replay(tape, batch=(x2,))


@pytest.mark.parametrize("cleared", [True, False])
def test_weights_that_change_between_two_passes(cleared: bool) -> None:
    """SAM climbs, asks for the gradient there and climbs down: the last pass gives it. Gradients of both are no step."""
    model, x, y = nn.Linear(D, V), torch.randn(B, D), torch.randint(V, (B,))
    weight = model.weight

    def first() -> Tensor:
        return F.cross_entropy(model(x), y)

    def climbed() -> Tensor:
        with torch.no_grad():
            weight.add_(0.5 * weight.grad)
        if cleared:
            model.zero_grad()
        return F.cross_entropy(model(x), y)

    tape = tape_step([first, climbed], model)
    if cleared:
        assert tape.gaps == []
        assert len(tape.roots) == 1
        assert distance_from_step(tape) == 0.0
        again = replay(tape, gradients=True).gradients()["weight"]
        assert torch.equal(again, tape.fresh["weight"])
    else:
        assert "changed between" in tape.gaps[0]


def test_look_through_reaches_what_detach_hides() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, 1))
    x = torch.randn(B, D)
    tape = tape_step(lambda: model[1](model[0](x).detach()).square().mean(), model)
    assert tape.given["0.weight"] is None
    assert replay(tape, gradients=True).gradients()["0.weight"] is None
    through = replay(tape, gradients=True, look_through=True).gradients()
    expected = torch.autograd.grad(model(x).square().mean(), model[0].weight)
    assert torch.equal(through["0.weight"], expected[0])


def test_a_write_into_a_follower_is_looked_through_by_itself() -> None:
    """A moving average that is brought up to date inside the step, without gradients (momentum encoders)."""
    model, slow = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False).requires_grad_(False)
    x = torch.randn(B, D)

    def loss() -> Tensor:
        with torch.no_grad():
            slow.weight.lerp_(model.weight, 0.5)
        return (model(x) * slow(x)).mean()

    tape = tape_step(loss, model)
    writes = {op for op in tape.ops if op.name == "lerp_"}
    cut = replay(tape, gradients=True).gradients()["weight"]
    through = replay(tape, gradients=True, look_through=writes).gradients()["weight"]
    follower = slow.weight.detach()
    held = model.weight.detach().requires_grad_()
    (expected,) = torch.autograd.grad(
        ((x @ held.T) * (x @ (follower + 0.5 * (held - held.detach())).T)).mean(), held
    )
    assert not torch.equal(cut, through)
    assert torch.allclose(through, expected, atol=1e-6)


def test_a_history_from_outside_is_reported() -> None:
    model = nn.Linear(D, D)
    x = model(torch.randn(B, D))
    tape = tape_step(lambda: model(x).square().mean(), model)
    assert "gradient history from outside" in tape.gaps[0]


def test_what_is_detached_brings_no_history() -> None:
    """A critic's step reads what the generator's step has made."""
    model, critic = nn.Linear(D, D), nn.Linear(D, 1)
    made = model(torch.randn(B, D))
    tape = tape_step(lambda: critic(made.detach()).square().mean(), critic)
    assert tape.gaps == []
    assert distance_from_step(tape) == 0.0


def test_the_bound_on_memory_refuses() -> None:
    model = nn.Linear(D, D)
    with pytest.raises(ReplayError, match="more than 0 MiB"):
        tape_step(lambda: model(torch.randn(B, D)).sum(), model, max_bytes=100)


def test_in_place_writes_into_constants_replay() -> None:
    model = nn.Linear(D, 4)
    x = torch.randn(B, D)

    def compute() -> Tensor:
        total = torch.zeros(B)
        view = total[:2]
        logits = model(x)
        for column in range(4):
            total += logits[:, column].exp()
        view.mul_(2.0)
        table = torch.full((B, 4), 3.0)
        table[1:, 2] = total[1:]
        return (total.log() * table.sum(1)).mean()

    assert_exact(tape_step(compute, model))


class InItsOwnMemory(torch.autograd.Function):
    """Cross-entropy that leaves the gradient where the logits were."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        logits = hidden @ weight.t()
        logits -= logits.amax(-1, keepdim=True)
        total = logits.exp().sum(-1).log()
        picked = logits.gather(1, target[:, None]).squeeze(1)
        ctx.save_for_backward(hidden, weight, target, logits.sub_(total[:, None]).exp_())
        return (total - picked).mean()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        hidden, weight, target, chances = ctx.saved_tensors
        rest = chances - F.one_hot(target, chances.shape[1])
        rest *= gradient / len(target)
        return rest @ weight, rest.t() @ hidden, None


def test_a_function_that_writes_over_its_memory_is_differentiated_and_read() -> None:
    model = nn.Linear(D, V, bias=False)
    x, y = torch.randn(B, D), torch.randint(V, (B,))
    tape = tape_step(lambda: InItsOwnMemory.apply(x, model.weight, y), model)
    found = replay(tape, gradients=True, dtype=torch.float64).gradients()["weight"]
    expected = torch.autograd.grad(F.cross_entropy(model(x), y), model.weight)[0]
    torch.testing.assert_close(found.float(), expected)
    logits = model(x).detach()
    (site,) = loss_sites(tape)
    for seen in (evaluate(tape, site.logits), replay(tape, want=[site.logits])[site.logits]):
        torch.testing.assert_close(seen.detach(), logits - logits.amax(-1, keepdim=True))


class IntoATile(torch.autograd.Function):
    """Results that torch writes where it is told: allowed, since nothing inside a Function asks for gradients."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor) -> Tensor:
        tile = hidden.new_empty(len(hidden), len(weight))
        torch.mm(hidden, weight.t(), out=tile)
        ctx.save_for_backward(hidden, weight)
        return tile

    @staticmethod
    def backward(ctx, gradient: Tensor):
        hidden, weight = ctx.saved_tensors
        into = torch.empty_like(hidden)
        torch.mm(gradient, weight, out=into)
        return into, gradient.t() @ hidden


def test_a_function_that_is_told_where_to_write_is_differentiated() -> None:
    model = nn.Linear(D, V, bias=False)
    x, y = torch.randn(B, D), torch.randint(V, (B,))
    tape = tape_step(lambda: F.cross_entropy(IntoATile.apply(x, model.weight), y), model)
    found = replay(tape, gradients=True, dtype=torch.float64).gradients()["weight"]
    expected = torch.autograd.grad(F.cross_entropy(model(x), y), model.weight)[0]
    torch.testing.assert_close(found.float(), expected)


class Hiding(nn.Module):
    """Which places a model hides it draws itself, and so does a layer that is dropped as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        order = torch.rand(x.shape[:2]).argsort(1)
        kept = x.gather(1, order[:, : T // 2, None].expand(-1, -1, D))
        alive = x.new_empty(len(x), 1, 1).bernoulli_(0.7)
        return self.lift(kept) * alive


def test_what_knows_no_float64_is_run_in_float32() -> None:
    """A mixture of experts multiplies its groups in one call, which float64 does not have."""
    experts = nn.ParameterList([torch.randn(2, 16, 16) / 4])
    x = torch.randn(2, 16, 16)

    def loss() -> Tensor:
        return torch._grouped_mm(x, experts[0]).tanh().square().mean()

    tape = tape_step(loss, experts)
    found = replay(tape, gradients=True, dtype=torch.float64).gradients()["0"]
    assert found is not None
    weight = experts[0].detach().double().requires_grad_()
    (x.double() @ weight).tanh().square().mean().backward()
    torch.testing.assert_close(found.double(), weight.grad, rtol=1e-5, atol=1e-7)


def test_what_a_model_draws_itself_is_drawn_again_from_another_state() -> None:
    model, x = Hiding(), torch.randn(B, T, D)
    tape = tape_step(lambda: model(x).square().mean(), model)
    assert_exact(tape)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    expected = model(x).square().mean()
    assert torch.equal(replay(tape, random={"cpu": state}).loss, expected)
    assert not torch.equal(replay(tape).loss, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("named", [True, False], ids=["by its device", "by the default"])
def test_what_a_model_draws_on_a_gpu_is_drawn_again(named: bool) -> None:
    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            where = {"device": x.device} if named else {}
            return super().forward(x) * (torch.rand(len(x), 1, **where) < 0.5)

    model, x = Masked(D, D, device="cuda"), torch.randn(64, D, device="cuda")
    with nullcontext() if named else torch.device("cuda"):
        assert_exact(tape_step(lambda: model(x).square().mean(), model))


def test_a_replay_does_not_touch_the_scripts_generator() -> None:
    model, x = nn.Linear(D, D), torch.randn(B, D)
    own = torch.Generator().manual_seed(3)

    def compute() -> Tensor:
        chosen = torch.multinomial(x.softmax(-1), 2, generator=own)
        return model(x).gather(1, chosen).square().mean()

    tape = tape_step(compute, model)
    before = own.get_state()
    assert_exact(tape)
    assert_exact(tape)
    assert torch.equal(own.get_state(), before)


def test_lines_and_modules_are_named() -> None:
    model = Decoder(Attention())
    tape = tape_step(loss_of(model), model)
    by_name = {op.name: op for op in tape.ops}
    assert by_name["softmax"].module == "block"
    assert by_name["softmax"].line.startswith("test_tape.py:")
    assert by_name["cross_entropy"].module is None


def test_names_of_tied_stray_and_wrapped_parameters() -> None:
    model = Decoder(Attention())
    names = Names(torch.nn.DataParallel(model))
    assert names.of(model.head.weight) == "token.weight"
    assert names.of(torch.zeros(3, 2)) == f"param {len(list(model.parameters()))} (3×2)"
    assert names.of_module(model.block.drop) == "block.drop"
