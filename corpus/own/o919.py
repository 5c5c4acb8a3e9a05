import math
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)


@dataclass
class MoEConfig:
    vocab_size: int = 96
    block_size: int = 32
    n_embd: int = 96
    n_head: int = 4
    n_layer: int = 2
    n_expert: int = 4
    top_k: int = 2
    aux_weight: float = 0.01
    lr: float = 1e-3
    steps: int = 250
    batch_size: int = 16


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.out = nn.Linear(c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = [z.view(b, t, self.c.n_head, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class SparseMLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c.n_embd, c.n_expert, bias=False)
        self.experts = nn.ModuleList([
            nn.Sequential(nn.Linear(c.n_embd, 2 * c.n_embd), nn.SiLU(), nn.Linear(2 * c.n_embd, c.n_embd))
            for _ in range(c.n_expert)])

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.router(flat).softmax(-1)
        weight, index = probs.topk(self.c.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            rows, slot = (index == e).nonzero(as_tuple=True)
            if len(rows):
                out.index_add_(0, rows, expert(flat[rows]) * weight[rows, slot].unsqueeze(-1))
        load = F.one_hot(index, self.c.n_expert).float().sum(1).mean(0) / self.c.top_k
        aux = self.c.n_expert * (load * probs.mean(0)).sum()
        return out.view_as(x), aux


class MoEGPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.attn = nn.ModuleList([SelfAttention(c) for _ in range(c.n_layer)])
        self.moe = nn.ModuleList([SparseMLP(c) for _ in range(c.n_layer)])
        self.norms = nn.ModuleList([nn.LayerNorm(c.n_embd) for _ in range(2 * c.n_layer + 1)])
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.apply(self._init_weights)
        self.lm_head.weight = self.wte.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        aux = 0.0
        for i in range(self.c.n_layer):
            x = x + self.attn[i](self.norms[2 * i](x))
            y, a = self.moe[i](self.norms[2 * i + 1](x))
            x, aux = x + y, aux + a
        logits = self.lm_head(self.norms[-1](x))
        ce = F.cross_entropy(logits.reshape(-1, self.c.vocab_size), targets.reshape(-1))
        return ce, aux / self.c.n_layer


def make_stream(n, table):
    out = [0, 1]
    noise = torch.rand(n)
    cand = torch.randint(0, table.size(0), (n,))
    pick = (torch.rand(n) < 0.3).long()
    for i in range(2, n):
        out.append(int(cand[i]) if noise[i] < 0.05 else int(table[out[-1], pick[i]]))
    return torch.tensor(out)


def get_batch(stream, c):
    ix = torch.randint(0, len(stream) - c.block_size - 1, (c.batch_size,))
    x = torch.stack([stream[i:i + c.block_size] for i in ix])
    y = torch.stack([stream[i + 1:i + 1 + c.block_size] for i in ix])
    return x, y


c = MoEConfig()
table = torch.randint(0, c.vocab_size, (c.vocab_size, 2))
train_stream, val_stream = make_stream(40000, table), make_stream(5000, table)
model = MoEGPT(c)
optimizer = torch.optim.AdamW(model.parameters(), lr=c.lr, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(c.steps):
    lr = c.lr * min((step + 1) / 25, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / c.steps)))
    for g in optimizer.param_groups:
        g["lr"] = lr
    ce, aux = model(*get_batch(train_stream, c))
    optimizer.zero_grad(set_to_none=True)
    (ce + c.aux_weight * aux).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 25 == 0 or step == c.steps - 1:
        print(f"step {step} ce {ce.item():.4f} balance {aux.item():.3f} lr {lr:.2e}")

model.eval()
with torch.no_grad():
    val = sum(model(*get_batch(val_stream, c))[0].item() for _ in range(20)) / 20
print(f"validation ce {val:.4f}")
