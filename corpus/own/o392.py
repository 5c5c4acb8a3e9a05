import torch
import torch.nn as nn
import torch.nn.functional as F
import textwrap
import email.message
import inspect

torch.manual_seed(303)
ACCUM, MICRO, CTX, UPDATES = 2, 8, 32, 110


class Experts(nn.Module):
    def __init__(self, d, n=4, k=2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(d, n, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(n))

    def forward(self, x):
        flat = x.flatten(0, 1)
        gate = self.router(flat).float().softmax(-1)
        w, idx = gate.topk(self.k, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e, f in enumerate(self.experts):
            row, slot = (idx == e).nonzero(as_tuple=True)
            if len(row):
                out.index_add_(0, row, (f(flat[row]) * w[row, slot, None]).to(out.dtype))
        load = F.one_hot(idx, gate.size(-1)).float().mean((0, 1))
        self.balance = gate.size(-1) * (load * gate.mean(0)).sum()
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True, bias=False)
        self.moe = Experts(d)

    def forward(self, x, mask):
        h = self.a(x)
        x = x + self.att(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.moe(self.b(x))


class MoELM(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(CTX, d)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.02)
        self.register_buffer("mask", torch.full((CTX, CTX), float("-inf")).triu(1))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for blk in self.blocks:
            x = blk(x, self.mask)
        return self.head(self.norm(x))


src = (inspect.getsource(textwrap) + inspect.getsource(email.message)).encode("ascii", "ignore")
data = torch.tensor(list(src))
model = MoELM(128)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
for update in range(UPDATES):
    shown = 0.0
    for micro in range(ACCUM):
        at = torch.randint(len(data) - CTX - 1, (MICRO, 1))
        rows = data[at + torch.arange(CTX + 1)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        ce = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        aux = sum(b.moe.balance for b in model.blocks)
        scaler.scale((ce + 0.01 * aux) / ACCUM).backward()
        shown += ce.item() / ACCUM
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
    if update % 10 == 0 or update == UPDATES - 1:
        print(f"update {update} loss {shown:.4f} norm {norm:.2f} aux {aux.item():.3f}")
