import math

import torch
import torch.nn as nn
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(61)

raw = "\n".join(topics[k] for k in sorted(topics))[:400_000].encode("ascii", "replace")
data = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
train, valid = data[:380_000], data[380_000:]
SEQ, BATCH, D, HEADS, DEPTH = 96, 12, 64, 4, 2


class DecayedLinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(D, 3 * D, bias=False)
        self.gate = nn.Linear(D, D)
        self.out = nn.Linear(D, D, bias=False)
        gamma = 1 - 2.0 ** -torch.arange(1, HEADS + 1)
        t = torch.arange(SEQ)
        dist = (t[:, None] - t[None, :]).float()
        self.register_buffer("decay", torch.where(dist >= 0, gamma[:, None, None] ** dist.clamp(min=0), 0.0))

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.inp(x).view(B, T, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        w = (q @ k.transpose(-1, -2)) * self.decay[:, :T, :T]
        y = (w @ v) / (w.sum(-1, keepdim=True) + 1e-6)
        return self.out(y.transpose(1, 2).reshape(B, T, D) * torch.sigmoid(self.gate(x)))


class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.mix = nn.Parameter(torch.full((D,), 0.5))
        self.attn = DecayedLinearAttention()
        self.up, self.down = nn.Linear(D, 3 * D), nn.Linear(3 * D, D)

    def forward(self, x):
        h = self.norm(x)
        prev = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        h = self.mix * h + (1 - self.mix) * prev
        return x + self.attn(h) + self.down(torch.relu(self.up(h)).square())


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(128, D) * 0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(D)
        for b in self.blocks:
            nn.init.zeros_(b.down.weight)
            nn.init.zeros_(b.down.bias)

    def forward(self, ids):
        x = self.table[ids] * math.sqrt(D) * 0.5
        for b in self.blocks:
            x = b(x)
        return self.norm(x) @ self.table.t()


def bits(logits, y):
    top = logits.amax(-1, keepdim=True).detach()
    lse = (logits - top).exp().sum(-1).log() + top.squeeze(-1)
    nll = lse - logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return nll.mean() / math.log(2), lse.square().mean()


def sample(src, n):
    i = torch.randint(0, len(src) - SEQ - 1, (n, 1)) + torch.arange(SEQ + 1)
    return src[i][:, :-1], src[i][:, 1:]


model = CharModel()
opt = torch.optim.NAdam(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
for step in range(1, 281):
    for group in opt.param_groups:
        group["lr"] = 4e-3 * min(step / 25, (25 / step) ** 0.5)
    x, y = sample(train, BATCH)
    bpc, z = bits(model(x), y)
    opt.zero_grad()
    (bpc + 1e-4 * z).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    opt.step()
    if step % 28 == 0:
        print(f"step {step} bits/char {bpc.item():.4f} z {z.item():.3f}")

with torch.no_grad():
    scores = [bits(model(x), y)[0].item() for x, y in (sample(valid, 32) for _ in range(3))]
print(f"valid bits/char {sum(scores) / len(scores):.4f}")
