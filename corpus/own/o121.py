import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(90)


@dataclass
class Config:
    ctx: int = 64
    block: int = 32
    window: int = 48
    width: int = 64
    heads: int = 4
    depth: int = 3
    rows: int = 12
    steps: int = 200
    lr: float = 2e-3


class LocalAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.inp = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)
        reach = cfg.window // cfg.block
        i = torch.arange(cfg.ctx)
        gap = i[:, None] - i[None, :]
        self.register_buffer("visible", (gap >= 0) & (gap < reach), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.inp(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.visible[:t, :t])
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class GatedMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        return self.down(F.gelu(self.gate(x)) * self.up(x))


class LocalLM(nn.Module):
    def __init__(self, cfg, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, cfg.width)
        self.pos = nn.Embedding(cfg.ctx, cfg.width)
        self.layers = nn.ModuleList()
        for _ in range(cfg.depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        nn.LayerNorm(cfg.width),
                        LocalAttention(cfg),
                        nn.LayerNorm(cfg.width),
                        GatedMLP(cfg.width),
                    ]
                )
            )
        self.norm = nn.LayerNorm(cfg.width)
        self.lm_head = nn.Linear(cfg.width, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.pos.weight[: ids.size(1)]
        for n1, attn, n2, mlp in self.layers:
            x = x + attn(n1(x))
            x = x + mlp(n2(x))
        return self.lm_head(self.norm(x))


cfg = Config()
STATES = 28
rule = torch.randperm(STATES)
data = torch.randint(STATES, (40000,))
slip = torch.rand(len(data)) < 0.08
for i in range(4, len(data)):
    if not slip[i]:
        data[i] = (rule[data[i - 4]] + data[i - 4 + 2] % 2) % STATES
model = LocalLM(cfg, STATES)
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
for step in range(cfg.steps):
    for g in optimizer.param_groups:
        g["lr"] = cfg.lr * min(1.0, (step + 1) / 20)
    at = torch.randint(len(data) - cfg.ctx - 1, (cfg.rows,))
    batch = torch.stack([data[a : a + cfg.ctx + 1] for a in at])
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0 or step == cfg.steps - 1:
        print(f"{step} | loss {loss.item():.4f} | bits {loss.item() / math.log(2):.3f}")
