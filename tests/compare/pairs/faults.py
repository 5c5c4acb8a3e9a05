"""Pairs with one planted fault: the sound sides first, then each fault as what it changes of them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from attention import Rotary, rotate
from layers import FunctionNorm, GeluFunction, NormFunction
from parts import (
    BATCH,
    GPT,
    HEADS,
    LAYERS,
    WIDTH,
    Block,
    Patient,
    adamw,
    autocast,
    batches,
    by_hand,
    masked,
    mean_loss,
    middle,
    patient,
)
from steps import Hand, HandSGD
from torch import Tensor, nn

BF16 = torch.bfloat16
TILE = 8
IGNORED = -100
SHORT = (16, 12, 5, 9)
MOST_NORM = 0.1


# --- sound sides ---


class OwnNorm(Block):
    def make_norm(self) -> nn.Module:
        return FunctionNorm()


class OwnGelu(Block):
    def act(self, x: Tensor) -> Tensor:
        return GeluFunction.apply(x)


class AttentionFunction(torch.autograd.Function):
    """Attention with its backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, slope: float) -> Tensor:
        weight = masked(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        ctx.save_for_backward(q, k, v, weight)
        ctx.slope = slope
        return weight @ v

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weight = ctx.saved_tensors
        back = given @ v.transpose(-1, -2)
        back = weight * (back - (back * weight).sum(-1, keepdim=True)) * ctx.slope
        return back @ k, back.transpose(-1, -2) @ q, weight.transpose(-1, -2) @ given, None


class OwnAttention(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return AttentionFunction.apply(q, k, v, q.shape[-1] ** -0.5)


class Grouped(Block):
    """Two heads share keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 2 * WIDTH)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).split((WIDTH, WIDTH // 2, WIDTH // 2), dim=-1)
        return q, k, v

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_hand(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1))


def ragged() -> list[dict[str, Tensor]]:
    """Rows of unequal length: what is beyond the end of a row has no target."""
    data = batches()
    for batch in data:
        targets = batch["targets"].clone()
        for row, length in zip(targets, SHORT):
            row[length:] = IGNORED
        batch["targets"] = targets
    return data


def in_groups(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """Decay on matrices alone."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return adamw(groups, **settings)


def with_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Patient:
    """Where the optimizer has to know more than the parameters."""
    _, data, loss, _ = patient(model)
    return model, data, loss, optimizer


def sound() -> Patient:
    return patient(middle(Block))


def sound_bf16() -> Patient:
    return patient(middle(Block), dtype=BF16)


def sound_autocast() -> Patient:
    return patient(middle(Block), loss=autocast(mean_loss))


def sound_norm() -> Patient:
    return patient(middle(OwnNorm))


def sound_norm_bf16() -> Patient:
    return patient(middle(OwnNorm), dtype=BF16)


def sound_gelu() -> Patient:
    return patient(middle(OwnGelu))


def sound_attention_autocast() -> Patient:
    return patient(middle(OwnAttention), loss=autocast(mean_loss))


def sound_attention() -> Patient:
    return patient(middle(OwnAttention))


def sound_rotary() -> Patient:
    return patient(middle(Rotary))


def sound_grouped() -> Patient:
    return patient(middle(Grouped))


def sound_ragged() -> Patient:
    return patient(middle(Block), data=ragged())


def sound_ragged_autocast() -> Patient:
    return patient(middle(Block), data=ragged(), loss=autocast(mean_loss))


def sound_groups() -> Patient:
    model = middle(Block)
    return with_optimizer(model, in_groups(model))


def sound_hand_autocast() -> Patient:
    return patient(middle(Block), loss=autocast(mean_loss), optimizer=Hand)


def sound_momentum() -> Patient:
    return patient(middle(Block), optimizer=HandSGD)


# --- forward ---


class NormEpsilon(Block):
    def make_norm(self) -> nn.Module:
        return nn.LayerNorm(WIDTH, eps=1e-3)


class GeluTanh(Block):
    def act(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class AfterNorm(Block):
    """The residual is taken behind the norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attention(x)
        return x + self.mlp(self.norm2(x))


class Doubled(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = x + (x + self.attention(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class RotaryPairs(Rotary):
    """Neighbouring numbers form a pair."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def turned(x: Tensor) -> Tensor:
            apart = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
            return torch.stack(rotate(apart).chunk(2, dim=-1), dim=-1).flatten(-2)

        return Block.attend(self, turned(q), turned(k), v)


class RotaryBase(Rotary):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Block.attend(self, rotate(q, base=500000.0), rotate(k, base=500000.0), v)


class RotaryValues(Rotary):
    """The values are turned too."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(q, k, rotate(v))


class GroupsInterleaved(Grouped):
    """Head h takes group h mod 2 instead of h // 2."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_hand(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))


class Unscaled(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


class Strict(Block):
    """A place does not see itself; the first sees only itself."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        score = masked(score, diagonal=0)
        score[..., 0, 0] = 0
        return score.softmax(-1) @ v


class NextSeen(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return masked(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), 2).softmax(-1) @ v


class OverQueries(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return masked(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-2) @ v


class Tiled(nn.Linear):
    """The last columns miss the second half of the sum: a loop over tiles that ends too early."""

    def forward(self, x: Tensor) -> Tensor:
        half = self.in_features // 2
        whole = F.linear(x, self.weight, self.bias)
        part = F.linear(x[..., :half], self.weight[-TILE:, :half], self.bias[-TILE:])
        return torch.cat((whole[..., :-TILE], part), dim=-1)


class LastTile(Block):
    def __init__(self) -> None:
        super().__init__()
        self.down = Tiled(4 * WIDTH, WIDTH)


class Swapped(Block):
    """Keys come first."""

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, q, v = self.qkv(x).chunk(3, dim=-1)
        return q, k, v


class HeadsTurned(Block):
    """Merged from the last head to the first."""

    def merge(self, x: Tensor) -> Tensor:
        return super().merge(x.flip(1))


class NoBias(Block):
    """One linear layer without its bias, called as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.out = WithoutBias(WIDTH, WIDTH)


class WithoutBias(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class TransposedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.T, self.bias)


class OutTransposed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.out = TransposedLinear(WIDTH, WIDTH)


class Unbiased(nn.LayerNorm):
    """The variance over n - 1."""

    def forward(self, x: Tensor) -> Tensor:
        inner = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True)
        return inner * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class NormVariance(Block):
    def make_norm(self) -> nn.Module:
        return Unbiased(WIDTH)


class PositionsLate(GPT):
    """Positions begin at 1; the last place takes row 0."""

    def enter(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + self.positions.weight.roll(-1, 0)[: tokens.shape[1]]


def norm_epsilon() -> Patient:
    return patient(middle(NormEpsilon))


def gelu_tanh() -> Patient:
    return patient(middle(GeluTanh))


def after_norm() -> Patient:
    return patient(middle(AfterNorm))


def doubled() -> Patient:
    return patient(middle(Doubled))


def rotary_pairs() -> Patient:
    return patient(middle(RotaryPairs))


def rotary_base() -> Patient:
    return patient(middle(RotaryBase))


def rotary_values() -> Patient:
    return patient(middle(RotaryValues))


def groups_interleaved() -> Patient:
    return patient(middle(GroupsInterleaved))


def norm_variance_autocast() -> Patient:
    return patient(middle(NormVariance), loss=autocast(mean_loss))


def unscaled_autocast() -> Patient:
    return patient(middle(Unscaled), loss=autocast(mean_loss))


def next_seen_bf16() -> Patient:
    return patient(middle(NextSeen), dtype=BF16)


def strict() -> Patient:
    return patient(middle(Strict))


def over_queries_autocast() -> Patient:
    return patient(middle(OverQueries), loss=autocast(mean_loss))


def no_bias_bf16() -> Patient:
    return patient(middle(NoBias), dtype=BF16)


def transposed_bf16() -> Patient:
    return patient(middle(OutTransposed), dtype=BF16)


def last_tile_autocast() -> Patient:
    return patient(middle(LastTile), loss=autocast(mean_loss))


def swapped_autocast() -> Patient:
    return patient(middle(Swapped), loss=autocast(mean_loss))


def heads_turned_bf16() -> Patient:
    return patient(GPT((HeadsTurned, Block, Block)), dtype=BF16)


def positions_late_bf16() -> Patient:
    return patient(PositionsLate((Block,) * (LAYERS + 1)), dtype=BF16)


# --- loss ---


def _cross_entropy(model: Any, batch: Any, **options: Any) -> Tensor:
    logits = model(batch["tokens"]).float()
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), **options)


def summed_autocast() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        return _cross_entropy(model, batch, reduction="sum")

    return patient(middle(Block), loss=autocast(loss))


def last_left_out() -> Patient:
    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"])[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"][:, :-1].flatten())

    return patient(middle(Block), loss=loss)


def targets_shifted_bf16() -> Patient:
    """Shifted in the batch, and once more in the loss."""

    def loss(model: Any, batch: Any) -> Tensor:
        logits = model(batch["tokens"])[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"][:, 1:].flatten())

    return patient(middle(Block), loss=loss, dtype=BF16)


def mean_of_means_autocast() -> Patient:
    """Rows of unequal length count the same: what accumulation over micro-batches does."""

    def loss(model: Any, batch: Any) -> Tensor:
        logits, targets = model(batch["tokens"]).float(), batch["targets"]
        each = [F.cross_entropy(x, y, ignore_index=IGNORED) for x, y in zip(logits, targets)]
        return torch.stack(each).sum() / BATCH

    return patient(middle(Block), data=ragged(), loss=autocast(loss))


# --- backward ---


class NoMeanTerm(NormFunction):
    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hat, rate, weight = ctx.saved_tensors
        inner = given * weight
        back = (inner - hat * (inner * hat).mean(-1, keepdim=True)) * rate
        return back, (given * hat).sum((0, 1)), given.sum((0, 1))


class NoVarianceTerm(NormFunction):
    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hat, rate, weight = ctx.saved_tensors
        inner = given * weight
        back = (inner - inner.mean(-1, keepdim=True)) * rate
        return back, (given * hat).sum((0, 1)), given.sum((0, 1))


class FirstRowOnly(NormFunction):
    """The gradient of the scale is summed over places only, and then taken of the first row."""

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        back, _, bias = NormFunction.backward(ctx, given)
        hat = ctx.saved_tensors[0]
        return back, (given * hat)[:-1].sum((0, 1)), bias


class NormWith(FunctionNorm):
    function: type[NormFunction]

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.weight, self.bias)


class MeanlessNorm(NormWith):
    function = NoMeanTerm


class VariancelessNorm(NormWith):
    function = NoVarianceTerm


class RowlessNorm(NormWith):
    function = FirstRowOnly


class Meanless(Block):
    def make_norm(self) -> nn.Module:
        return MeanlessNorm()


class Varianceless(Block):
    def make_norm(self) -> nn.Module:
        return VariancelessNorm()


class Rowless(Block):
    def make_norm(self) -> nn.Module:
        return RowlessNorm()


class GeluOfTanh(GeluFunction):
    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            made = F.gelu(again, approximate="tanh")
        return torch.autograd.grad(made, again, given)[0]


class GeluBackward(Block):
    def act(self, x: Tensor) -> Tensor:
        return GeluOfTanh.apply(x)


class ScaleForgotten(Block):
    """The gradient of the scores is not scaled."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return AttentionFunction.apply(q, k, v, 1.0)


class Detached(Block):
    """Nothing goes back through the feed-forward part's first layer."""

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)).detach())


class KeysDetached(Block):
    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().parts(x)
        return q, k.detach(), v


def no_mean_term() -> Patient:
    return patient(middle(Meanless))


def no_variance_term_bf16() -> Patient:
    return patient(middle(Varianceless), dtype=BF16)


def row_missing() -> Patient:
    return patient(middle(Rowless))


def gelu_backward() -> Patient:
    return patient(middle(GeluBackward))


def scale_forgotten_autocast() -> Patient:
    return patient(middle(ScaleForgotten), loss=autocast(mean_loss))


def scale_forgotten() -> Patient:
    return patient(middle(ScaleForgotten))


def detached() -> Patient:
    return patient(middle(Detached))


def keys_detached_bf16() -> Patient:
    return patient(middle(KeysDetached), dtype=BF16)


# --- update ---


class Uncorrected(Hand):
    def move(self, w: Tensor, g: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        state["m"] = beta1 * state["m"] + (1 - beta1) * g
        state["v"] = beta2 * state["v"] + (1 - beta2) * g * g
        w.sub_(lr * (state["m"] / (state["v"].sqrt() + group["eps"]) + group["weight_decay"] * w))


class Keeps(torch.optim.AdamW):
    """Clears the gradients of matrices alone."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() >= 2:
                    parameter.grad = None


def decayed_everywhere() -> Patient:
    return patient(middle(Block))


def decay_missing() -> Patient:
    model = middle(Block)
    return with_optimizer(model, in_groups(model, weight_decay=0.0))


def coupled_decay() -> Patient:
    def adam(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, foreach=False
        )

    return patient(middle(Block), optimizer=adam)


def betas_swapped() -> Patient:
    return patient(middle(Block), optimizer=lambda p: adamw(p, betas=(0.95, 0.9)))


def uncorrected_autocast() -> Patient:
    return patient(middle(Block), loss=autocast(mean_loss), optimizer=Uncorrected)


def no_momentum() -> Patient:
    return patient(middle(Block), optimizer=lambda p: HandSGD(p, momentum=0.0))


def rate_doubled() -> Patient:
    model = middle(Block)
    optimizer = in_groups(model)
    optimizer.param_groups[1]["lr"] *= 2
    return with_optimizer(model, optimizer)


def left_out() -> Patient:
    model = middle(Block)
    kept = [p for name, p in model.named_parameters() if name != "blocks.1.up.weight"]
    return with_optimizer(model, adamw(kept))


def clipped() -> Patient:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        listed = list(parameters)
        made = HandSGD(listed)
        made.register_step_pre_hook(
            lambda *_: torch.nn.utils.clip_grad_norm_(listed, MOST_NORM) and None
        )
        return made

    return patient(middle(Block), optimizer=optimizer)


def vectors_kept() -> Patient:
    model = middle(Block)
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1, "foreach": False}
    return with_optimizer(model, Keeps(model.parameters(), **settings))
