import torch
import torch.nn as nn
import torch.nn.functional as F
import inspect, ast, argparse, textwrap, difflib, tarfile, calendar

torch.manual_seed(4)
source = "\n".join(inspect.getsource(m) for m in (ast, argparse, textwrap, difflib, tarfile, calendar))
data = torch.tensor([min(ord(c), 127) for c in source])
SPAN, BATCH, TEMPERATURE = 48, 40, 0.01


def two_views(n):
    at = torch.randint(len(data) - 2 * SPAN, (n,))
    shift = torch.randint(SPAN // 8, SPAN // 2, (n,))
    cols = torch.arange(SPAN)
    a = data[at[:, None] + cols]
    b = data[(at + shift)[:, None] + cols]
    drop = torch.rand(2, n, SPAN) < 0.25
    return a.masked_fill(drop[0], 0), b.masked_fill(drop[1], 0)


class SpanEncoder(nn.Module):
    def __init__(self, d=64, out=48):
        super().__init__()
        self.emb = nn.Embedding(128, d)
        self.conv1 = nn.Conv1d(d, d, 5, padding=2)
        self.conv2 = nn.Conv1d(d, d, 5, padding=2)
        self.norm = nn.GroupNorm(4, d)
        self.proj = nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, out), nn.BatchNorm1d(out))

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        h = h + F.gelu(self.conv1(h))
        h = h + F.gelu(self.conv2(self.norm(h)))
        return F.normalize(self.proj(h.amax(-1)), dim=-1)


def info_nce(za, zb, tau):
    sim = torch.exp(za @ zb.t() / tau)
    match = sim.diagonal()
    forward = match / sim.sum(dim=1)
    backward = match / sim.sum(dim=0)
    return -0.5 * (torch.log(forward) + torch.log(backward)).mean()


encoder = SpanEncoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3, weight_decay=1e-4)
running = None
for it in range(1, 141):
    a, b = two_views(BATCH)
    loss = info_nce(encoder(a), encoder(b), TEMPERATURE)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if it == 1 or it % 15 == 0:
        print(f"iter {it:4d}  contrastive loss {loss.item():.4f}  ema {running:.4f}")
