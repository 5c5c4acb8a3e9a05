"""Attention's entropy is seen in every common way of writing it, and equals what its weights say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from traindoctor.events import ForwardBegin, ForwardEnd
from traindoctor.ground.names import Names
from traindoctor.probes.attention import Attention, of_call, summary
from traindoctor.record import RecordWriter, open_record


class Layer(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(16, 48)
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, 16)
        if self.how.startswith("module"):
            return self.mha(x, x, x, need_weights=self.how == "module with weights")[0]
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.how == "fused":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.mT / math.sqrt(8)
            y = F.dropout(scores.softmax(-1), 0.1) @ v
        return y.transpose(1, 2).flatten(2)


class Router(nn.Module):
    """A softmax over experts: weights that meet no matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x).softmax(-1).amax(-1, keepdim=True)


def recorded(model: nn.Module, folder: Path) -> dict[str, float]:
    probe = Attention()
    probe.names = Names(model)
    x = torch.randn(3, 6, 16)
    probe.on(ForwardBegin(model, (x,), {}, True, True), due=True)
    output = model(x)
    probe.on(ForwardEnd(model, output, True, 0.0), due=True)
    writer = RecordWriter(folder)
    probe.close_step(0, writer, due=True)
    writer.scalar("loss.root", 0, 1.0)
    writer.close()
    assert torch._C._len_torch_function_stack() == 0
    table = open_record(folder).layers("attention.entropy")
    return {} if table is None else {n: float(table.layer(n).values[0]) for n in table.layers}


@pytest.mark.parametrize("how", ["fused", "by hand", "module", "module with weights"])
def test_seen_however_it_is_written(tmp_path: Path, how: str) -> None:
    torch.manual_seed(0)
    found = recorded(nn.Sequential(Layer(how)), tmp_path)
    name = "0.mha" if how.startswith("module") else "0"
    assert list(found) == [name]
    assert 0.5 < found[name] < 1.0


def test_a_softmax_that_meets_no_product_is_no_attention(tmp_path: Path) -> None:
    assert recorded(nn.Sequential(Router()), tmp_path) == {}


def test_entropy_is_that_of_the_weights_over_the_keys_a_query_sees() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    causal = of_call(q, k, v, is_causal=True)
    masked = of_call(q, k, v, torch.ones(5, 5).tril().bool())
    torch.testing.assert_close(causal, masked)
    scores = q[0] @ k[0].mT / math.sqrt(8)
    shares = []
    for head in range(2):
        for row in range(1, 5):  # the first query sees one key: nothing to spread
            p = scores[head, row, : row + 1].softmax(-1)
            shares.append(float(-(p * p.log()).sum() / math.log(row + 1)))
    assert float(causal[0]) == pytest.approx(sum(shares) / len(shares), rel=1e-5)


def test_uniform_is_one_and_saturated_is_zero() -> None:
    assert float(summary(torch.zeros(1, 4, 4))[0]) == pytest.approx(1.0)
    entropy, spread = summary(1000.0 * torch.eye(4).unsqueeze(0))
    assert float(entropy) == pytest.approx(0.0)
    assert float(spread) > 100


def test_shared_keys_of_grouped_queries() -> None:
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    whole = of_call(q, k.repeat_interleave(2, 1), k)
    torch.testing.assert_close(of_call(q, k, k, enable_gqa=True), whole)
