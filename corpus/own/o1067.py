import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CONTEXT = 32
HORIZON = 12
HIDDEN = 48
HEADS = 4
BATCH = 64
UPDATES = 300


def series(n, length):
    t = torch.arange(length).float()
    period = torch.empty(n, 1).uniform_(6, 14)
    phase = torch.rand(n, 1) * 2 * math.pi
    amp = torch.empty(n, 1).uniform_(0.6, 1.4)
    wave = amp * torch.sin(2 * math.pi * t / period + phase)
    trend = torch.empty(n, 1).uniform_(-0.5, 0.5) * (t / length)
    return wave + trend + 0.3 * torch.randn(n, length)


class SelfAttention(nn.Module):
    def __init__(self, hidden, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden)
        mask = torch.triu(torch.ones(length, length), diagonal=1).bool()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = [z.view(b, n, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(x).chunk(3, dim=-1)]
        ctx = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:n, :n])
        return self.out(ctx.transpose(1, 2).contiguous().view(b, n, d))


class Layer(nn.Module):
    def __init__(self, hidden, heads, length):
        super().__init__()
        self.attn = SelfAttention(hidden, heads, length)
        self.ff = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self.n1 = nn.LayerNorm(hidden)
        self.n2 = nn.LayerNorm(hidden)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class Forecaster(nn.Module):
    def __init__(self, hidden, heads, depth, length):
        super().__init__()
        self.value = nn.Linear(1, hidden)
        self.position = nn.Parameter(0.5 * torch.randn(length, hidden))
        self.layers = nn.ModuleList([Layer(hidden, heads, length) for _ in range(depth)])
        self.norm = nn.LayerNorm(hidden)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, y):
        h = self.value(y.unsqueeze(-1)) + self.position[: y.size(1)]
        for layer in self.layers:
            h = layer(h)
        return self.readout(self.norm(h)).squeeze(-1)


def forecast(model, past, horizon):
    seq = past
    for _ in range(horizon):
        nxt = model(seq[:, -CONTEXT:])[:, -1:]
        seq = torch.cat([seq, nxt], dim=1)
    return seq[:, -horizon:]


def main():
    torch.manual_seed(21)
    total = CONTEXT + HORIZON
    train, valid = series(2000, total), series(200, total)
    model = Forecaster(HIDDEN, HEADS, 2, CONTEXT)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for update in range(UPDATES):
        rows = torch.randint(len(train), (BATCH,))
        start = torch.randint(total - CONTEXT, (1,)).item()
        window = train[rows, start:start + CONTEXT + 1]
        loss = F.mse_loss(model(window[:, :-1]), window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if update % 20 == 0 or update == UPDATES - 1:
            with torch.no_grad():
                model.eval()
                v = F.mse_loss(model(valid[:, :CONTEXT]), valid[:, 1:CONTEXT + 1]).item()
                model.train()
            print(f"update {update:4d}  train mse {loss.item():.4f}  valid mse {v:.4f}")
    model.eval()
    with torch.no_grad():
        pred = forecast(model, valid[:, :CONTEXT], HORIZON)
        err = F.mse_loss(pred, valid[:, CONTEXT:]).item()
        last = F.mse_loss(valid[:, CONTEXT - 1:CONTEXT].expand(-1, HORIZON), valid[:, CONTEXT:]).item()
    print(f"rollout mse over {HORIZON} steps {err:.4f}   last-value mse {last:.4f}")


main()
