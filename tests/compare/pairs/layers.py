"""Layers in two ways each: norms, embeddings, linear layers, activation functions, whole encoders."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from parts import BLOCK, GPT, HEADS, LAYERS, VOCAB, WIDTH, Block, Patient, initialise, patient
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class LayerNorm(nn.Module):
    """E[x^2] - E[x]^2, as many kernels have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.square().mean(-1, keepdim=True) - mean.square()
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class NormFunction(torch.autograd.Function):
    """LayerNorm with a backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        inner = x - x.mean(-1, keepdim=True)
        rate = torch.rsqrt(inner.square().mean(-1, keepdim=True) + 1e-5)
        hat = inner * rate
        ctx.save_for_backward(hat, rate, weight)
        return hat * weight + bias

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hat, rate, weight = ctx.saved_tensors
        inner = given * weight
        slope = hat * (inner * hat).mean(-1, keepdim=True)
        back = (inner - inner.mean(-1, keepdim=True) - slope) * rate
        return back, (given * hat).sum((0, 1)), given.sum((0, 1))


class FunctionNorm(LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return NormFunction.apply(x, self.weight, self.bias)


class GeluFunction(torch.autograd.Function):
    """Exact GELU with its derivative by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        below = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        return given * (below + x * torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi))


class Conv1D(nn.Module):
    """GPT-2's linear layer: its weight lies the other way round."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(given, made))
        self.bias = nn.Parameter(torch.zeros(made))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class LayerNormBlock(Block):
    def make_norm(self) -> nn.Module:
        return LayerNorm()


class TwoPassNorm(LayerNorm):
    """Safe in few bits, where E[x^2] - E[x]^2 cancels."""

    def forward(self, x: Tensor) -> Tensor:
        inner = x - x.mean(-1, keepdim=True)
        rate = torch.rsqrt(inner.square().mean(-1, keepdim=True) + 1e-5)
        return inner * rate * self.weight + self.bias


class TwoPass(Block):
    def make_norm(self) -> nn.Module:
        return TwoPassNorm()


class TorchRMSBlock(Block):
    def make_norm(self) -> nn.Module:
        return nn.RMSNorm(WIDTH, eps=1e-5)


class RMSBlock(Block):
    def make_norm(self) -> nn.Module:
        return RMSNorm()


class FunctionBlock(Block):
    def make_norm(self) -> nn.Module:
        return FunctionNorm()

    def act(self, x: Tensor) -> Tensor:
        return GeluFunction.apply(x)


class ConvBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = Conv1D(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)
        self.up, self.down = Conv1D(WIDTH, 4 * WIDTH), Conv1D(4 * WIDTH, WIDTH)


class CheckpointBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class OneHot(GPT):
    """Looks its tokens up with a matrix product."""

    def enter(self, tokens: Tensor) -> Tensor:
        chosen = F.one_hot(tokens, VOCAB).to(self.embedding.weight.dtype)
        places = torch.eye(BLOCK, device=tokens.device)[: tokens.shape[1]]
        return chosen @ self.embedding.weight + places @ self.positions.weight


class Encoder(GPT):
    """torch's own encoder layers, norm first."""

    def __init__(self) -> None:
        super().__init__(())
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).layers
        initialise(self)

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.enter(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=x.device)
        for layer in self.blocks:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.norm(x)


def plain() -> Patient:
    return patient()


def layer_norm() -> Patient:
    return patient(GPT((LayerNormBlock,) * LAYERS))


def torch_rms_norm() -> Patient:
    return patient(GPT((TorchRMSBlock,) * LAYERS))


def rms_norm() -> Patient:
    return patient(GPT((RMSBlock,) * LAYERS))


def functions() -> Patient:
    return patient(GPT((FunctionBlock,) * LAYERS))


def bf16() -> Patient:
    return patient(dtype=torch.bfloat16)


def bf16_layer_norm() -> Patient:
    """Every intermediate result rounded to bfloat16."""
    return patient(GPT((TwoPass,) * LAYERS), dtype=torch.bfloat16)


def bf16_functions() -> Patient:
    return patient(GPT((FunctionBlock,) * LAYERS), dtype=torch.bfloat16)


def conv1d() -> Patient:
    return patient(GPT((ConvBlock,) * LAYERS))


def checkpointed() -> Patient:
    return patient(GPT((CheckpointBlock,) * LAYERS))


def one_hot() -> Patient:
    return patient(OneHot())


def encoder() -> Patient:
    return patient(Encoder())


def compiled() -> Patient:
    model, data, loss, optimizer = patient()
    return torch.compile(model), data, loss, optimizer
