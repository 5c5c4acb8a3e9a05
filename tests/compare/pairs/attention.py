"""Attention in several ways: torch's own on each backend, by hand, with einsum, and its inputs fused or not."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from parts import (
    BLOCK,
    GPT,
    HEADS,
    LAYERS,
    WIDTH,
    Block,
    Patient,
    autocast,
    by_hand,
    mean_loss,
    patient,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class ByHand(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_hand(q, k, v)


class Einsum(Block):
    """Never lays the heads out side by side; the mask is added."""

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.parts(x))  # (B, T, H, S)
        score = torch.einsum("bths,buhs->bhtu", q * q.shape[-1] ** -0.5, k)
        score = score + torch.full(score.shape[-2:], -math.inf, device=x.device).triu(1)
        weight = score.softmax(-1).to(v.dtype)
        return self.out(torch.einsum("bhtu,buhs->bths", weight, v).flatten(2))


class Math(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Flash(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Efficient(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Cudnn(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Online(Block):
    """A softmax that is built up key by key, as flash attention does it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        top = q.new_full((*q.shape[:-1], 1), -math.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(q)
        place = torch.arange(q.shape[2], device=q.device)[:, None]
        for key in range(k.shape[2]):
            score = (q * k[:, :, key : key + 1]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
            score = score.masked_fill(place < key, -math.inf)
            higher = torch.maximum(top, score)
            shrink, share = (top - higher).exp(), (score - higher).exp()
            total = total * shrink + share
            mixed = mixed * shrink + share * v[:, :, key : key + 1]
            top = higher
        return mixed / total


class Apart(Block):
    """Three layers where Block has one."""

    def __init__(self) -> None:
        super().__init__()
        del self.qkv
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), self.k(x), self.v(x)


def rotate(x: Tensor, first_place: int = 0, base: float = 10000.0) -> Tensor:
    """Rotary positions, the pairs half a head apart; x (B, H, T, S)."""
    T, S = x.shape[-2:]
    place = torch.arange(first_place, first_place + T, dtype=torch.float64, device=x.device)
    rate = base ** -(torch.arange(0, S, 2, dtype=torch.float64, device=x.device) / S)
    angle = torch.outer(place, rate)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    one, two = x.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


class Rotary(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(rotate(q), rotate(k), v)


class RotaryLater(Block):
    """Scores depend on differences of places alone: where the count starts does not matter."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(rotate(q, BLOCK), rotate(k, BLOCK), v)


class RotaryComplex(Block):
    """Turned as complex numbers, by hand."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        S = q.shape[-1]
        rate = 10000.0 ** -(torch.arange(0, S, 2, device=q.device) / S)
        turn = torch.polar(
            torch.ones(S // 2, device=q.device),
            torch.outer(torch.arange(q.shape[2], device=q.device), rate),
        )

        def turned(x: Tensor) -> Tensor:
            z = torch.complex(*x.float().chunk(2, dim=-1)) * turn
            return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)

        return by_hand(turned(q), turned(k), v)


def sdpa() -> Patient:
    return patient()


def math_backend() -> Patient:
    return patient(GPT((Math,) * LAYERS))


def flash_backend() -> Patient:
    return patient(GPT((Flash,) * LAYERS))


def hand() -> Patient:
    return patient(GPT((ByHand,) * LAYERS))


def online() -> Patient:
    return patient(GPT((Online,) * LAYERS))


def apart() -> Patient:
    return patient(GPT((Apart,) * LAYERS))


def rotary() -> Patient:
    return patient(GPT((Rotary,) * LAYERS))


def rotary_later() -> Patient:
    return patient(GPT((RotaryLater,) * LAYERS))


def rotary_complex() -> Patient:
    return patient(GPT((RotaryComplex,) * LAYERS))


def bf16() -> Patient:
    return patient(dtype=torch.bfloat16)


def bf16_hand() -> Patient:
    return patient(GPT((ByHand,) * LAYERS), dtype=torch.bfloat16)


def bf16_einsum() -> Patient:
    return patient(GPT((Einsum,) * LAYERS), dtype=torch.bfloat16)


def bf16_math() -> Patient:
    return patient(GPT((Math,) * LAYERS), dtype=torch.bfloat16)


def bf16_flash() -> Patient:
    return patient(GPT((Flash,) * LAYERS), dtype=torch.bfloat16)


def bf16_efficient() -> Patient:
    return patient(GPT((Efficient,) * LAYERS), dtype=torch.bfloat16)


def bf16_cudnn() -> Patient:
    return patient(GPT((Cudnn,) * LAYERS), dtype=torch.bfloat16)


def autocast_sdpa() -> Patient:
    return patient(loss=autocast(mean_loss))


def autocast_einsum() -> Patient:
    return patient(GPT((Einsum,) * LAYERS), loss=autocast(mean_loss))
