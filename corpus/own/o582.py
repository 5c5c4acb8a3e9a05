import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(10)
raw = " ".join(" ".join(topics[k].split()) for k in sorted(topics))[:250_000]
alphabet = sorted(set(raw) | set(raw.upper()))
to = {c: i + 1 for i, c in enumerate(alphabet)}
V, D, H, T, L = len(alphabet) + 1, 64, 4, 40, 2


def encode(s):
    return torch.tensor([to[c] for c in s])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D, padding_idx=0), nn.Embedding(T, D)
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(L))
        self.o = nn.ModuleList(nn.Linear(D, D) for _ in range(L))
        self.up = nn.ModuleList(nn.Linear(D, 4 * D) for _ in range(L))
        self.dn = nn.ModuleList(nn.Linear(4 * D, D) for _ in range(L))
        self.gain = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * L + 1))
        self.head = nn.Linear(D, V)
        nn.init.normal_(self.emb.weight, std=0.5)
        nn.init.normal_(self.pos.weight, std=0.1)

    def forward(self, s):
        b, n = s.shape
        x = self.emb(s) + self.pos.weight[:n]
        for i in range(L):
            q, k, v = self.qkv[i](self.gain[2 * i](x)).view(b, n, 3, H, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o[i](a.transpose(1, 2).reshape(b, n, D))
            x = x + self.dn[i](F.gelu(self.up[i](self.gain[2 * i + 1](x))))
        return self.head(self.gain[-1](x))


def micro_batches(ids, k=2, rows=12):
    out = []
    for _ in range(k):
        start = torch.randint(len(ids) - T - 1, (rows,))
        w = ids[start[:, None] + torch.arange(T + 1)]
        keep = torch.randint(T // 2, T + 2, (rows, 1))
        out.append(torch.where(torch.arange(T + 1) < keep, w, 0))
    return out


SCALE = 2.0 ** 12


def train(model, ids, params, lr, steps, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(steps):
        for g in opt.param_groups:
            g["lr"] = lr * min(1, (step + 1) / 15) * (1 - 0.9 * step / steps)
        parts = micro_batches(ids)
        count = sum((w[:, 1:] != 0).sum().item() for w in parts)
        total = 0.0
        for w in parts:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(w[:, :-1])
            nll = F.cross_entropy(logits.float().flatten(0, 1), w[:, 1:].flatten(), ignore_index=0, reduction="sum")
            (nll * (SCALE / count)).backward()
            total += nll.item() / count
        for p in params:
            p.grad.div_(SCALE)
        norm = nn.utils.clip_grad_norm_(params, 1.0)
        if math.isfinite(norm.item()):
            opt.step()
        opt.zero_grad()
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} {step:3d} nll {total:.4f} norm {norm.item():.3f}", flush=True)


model = Model()
train(model, encode(raw), list(model.parameters()), 3e-3, 150, "text")
for n, p in model.named_parameters():
    p.requires_grad_(p.ndim == 1 or n.startswith(("head", "emb")))
train(model, encode(raw.upper()), [p for p in model.parameters() if p.requires_grad], 4e-3, 70, "caps")
