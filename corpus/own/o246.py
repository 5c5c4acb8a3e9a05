from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w_in = nn.Linear(d, hidden)
        self.w_out = nn.Linear(hidden, d)

    def forward(self, x):
        return self.w_out(F.silu(self.w_in(x)))


class SparseMoE(nn.Module):
    def __init__(self, d, experts=8, hidden=96):
        super().__init__()
        self.router = nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList(Expert(d, hidden) for _ in range(experts))
        self.penalty = 0.0

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.router(flat).softmax(-1)
        weight, choice = probs.max(-1)
        out = torch.zeros_like(flat)
        centers = []
        for i, expert in enumerate(self.experts):
            rows = (choice == i).nonzero().squeeze(-1)
            y = expert(flat[rows]) * weight[rows, None]
            centers.append(y.mean(0))
            out = out.index_add(0, rows, y)
        unit = F.normalize(torch.stack(centers), dim=-1)
        self.penalty = (unit @ unit.t()).triu(1).pow(2).mean()
        return out.view_as(x)


class MoELM(nn.Module):
    def __init__(self, vocab, d=48, ctx=32, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.attn = nn.ModuleList(nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(depth))
        self.moe = nn.ModuleList(SparseMoE(d) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        t = ids.size(1)
        x = self.tok(ids) + self.pos.weight[:t]
        block = torch.ones(t, t, dtype=torch.bool).triu(1)
        for n1, a, n2, m in zip(self.n1, self.attn, self.n2, self.moe):
            h = n1(x)
            x = x + a(h, h, h, attn_mask=block, need_weights=False)[0]
            x = x + m(n2(x))
        return self.out(x), sum(m.penalty for m in self.moe)


torch.manual_seed(200)
text = "".join(topics[k] for k in sorted(topics))[:200000]
vocab = sorted(set(text))
ids = torch.tensor([vocab.index(c) for c in text])
model = MoELM(len(vocab))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
for step in range(240):
    at = torch.randint(len(ids) - 33, (12,))
    rows = ids[at[:, None] + torch.arange(33)]
    logits, penalty = model(rows[:, :-1])
    ce = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    loss = ce + 0.1 * penalty
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 239:
        print(f"{step:4d} ce {ce.item():.4f} total {loss.item():.4f}")
