"""The arithmetic of softmax rows on the device: what the kernels beside this file are made of.

Legend: V classes, x_t the target's logit, m the largest logit of the other classes, S = sum of
exp(x_j - m) over them; see softmax_rows.py for why the target is left out.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What the row weights are: 1, one number for all rows, or one for each.
UNIT, SCALAR, PER_ROW = 0, 1, 2


@triton.jit
def exp_below_0(d, ACCURATE: tl.constexpr):
    """exp(d) for d <= 0. The plain one loses |d| * 6e-8; ACCURATE puts the lost part back."""
    if ACCURATE:
        HIGH: tl.constexpr = 1.4426950216293335
        LOW: tl.constexpr = 1.9259629911e-8
        high = d * HIGH
        low = tl.fma(d, HIGH, -high) + d * LOW
        value = tl.exp2(high)
        # -inf - -inf is NaN in the low part; the value is 0 there
        return tl.where(value == 0.0, 0.0, tl.fma(value, low * 0.6931471805599453, value))
    return tl.exp(d)


@triton.jit
def log1p(value):
    """log(1 + value) to the last digits for tiny values too, from a plain log (float64)."""
    u = 1.0 + value
    # log(u) / (u - 1) varies so slowly near 1 that the rounding of u cancels
    return value * tl.where(u == 1.0, 1.0, tl.log(u) / (u - 1.0))


@triton.jit
def terms(x_t, m, S):
    """(loss, lse, factor, p_t, p_t - 1) in float64; see softmax_rows.row_terms."""
    lead = x_t.to(tl.float64) - m.to(tl.float64)
    lead = tl.where(x_t == float("inf"), float("nan"), lead)
    S = S.to(tl.float64)
    leads = lead >= 0
    shrink = tl.exp(-tl.abs(lead))
    others = tl.where(leads, S * shrink, S)
    at_target = tl.where(leads, 1.0, shrink)
    total = others + at_target
    loss = tl.where(leads, log1p(others), tl.log(total) - lead)
    lse = tl.maximum(x_t, m).to(tl.float64) + tl.log(total)
    factor = tl.where(leads, shrink, 1.0) / total
    return loss, lse, factor, at_target / total, -others / total


@triton.jit
def gradient_terms(x_t, m, S, ACCURATE: tl.constexpr):
    """(factor, p_t, p_t - 1, log of the sum) like `terms`, without the loss's logarithms.

    float64 if ACCURATE. Else float32 with the lead in two parts: every thread of a program does this
    arithmetic while the row waits, and a gradient of 8 or 11 bits does not need more.
    """
    if ACCURATE:
        lead = x_t.to(tl.float64) - m.to(tl.float64)
        S = S.to(tl.float64)
        shrink = tl.exp(-tl.abs(lead))
    else:
        exact = x_t.to(tl.float64) - m.to(tl.float64)
        lead = exact.to(tl.float32)
        S = S.to(tl.float32)
        rest = (exact - lead.to(tl.float64)).to(tl.float32)
        rest = tl.where(tl.abs(lead) < float("inf"), rest, 0.0)
        shrink = exp_below_0(-tl.abs(lead), True) * (1.0 - tl.where(lead >= 0, rest, -rest))
    leads = lead >= 0
    others = tl.where(leads, S * shrink, S)
    at_target = tl.where(leads, 1.0, shrink)
    # inf - inf is NaN in torch's softmax; here the target's inf would look like a perfect row
    at_target = tl.where(x_t == float("inf"), float("nan"), at_target)
    total = others + at_target
    inverse = 1.0 / total
    factor = tl.where(leads, shrink, 1.0) * inverse
    lse = tl.maximum(x_t, m.to(tl.float32)) + tl.log(total.to(tl.float32))
    return factor, at_target * inverse, -others * inverse, lse


@triton.jit
def origin(x_0):
    """A finite number near the logits, about which their mean is taken."""
    return tl.where(tl.abs(x_0) < float("inf"), x_0, 0.0)


@triton.jit
def row_loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH: tl.constexpr, Z: tl.constexpr):
    """Losses in float64; `mean` is the mean of all logits of the row."""
    loss, lse, _, _, _ = terms(x_t, m, S)
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (lse - mean)
    if Z:
        loss += z_loss * lse * lse
    return loss
