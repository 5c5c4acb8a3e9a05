import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data import topics as T


class SlidingAttention(nn.Module):
    def __init__(self, d, h, window, ctx):
        super().__init__()
        self.h = h
        self.w_in = nn.Linear(d, 3 * d)
        self.w_out = nn.Linear(d, d)
        i = torch.arange(ctx)
        rel = i[:, None] - i[None, :]
        self.register_buffer("allowed", (rel >= 0) & (rel < window))

    def forward(self, x):
        b, t, d = x.size()
        q, k, v = self.w_in(x).split(d, dim=-1)
        q, k, v = (z.reshape(b, t, self.h, d // self.h).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed[:t, :t])
        return self.w_out(y.transpose(1, 2).reshape(b, t, d))


class MoE(nn.Module):
    def __init__(self, d, n_exp=4, k=2):
        super().__init__()
        self.k, self.n = k, n_exp
        self.router = nn.Linear(d, n_exp, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)) for _ in range(n_exp))

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        logits = self.router(flat)
        probs = logits.softmax(-1)
        top_p, top_i = probs.topk(self.k, dim=-1)
        top_p = top_p / top_p.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            tok, slot = (top_i == e).nonzero(as_tuple=True)
            if tok.numel():
                out.index_add_(0, tok, expert(flat[tok]) * top_p[tok, slot, None])
        load = F.one_hot(top_i, self.n).float().sum(1).mean(0) / self.k
        balance = self.n * (load * probs.mean(0)).sum()
        z = logits.logsumexp(-1).pow(2).mean()
        return out.view_as(x), 0.01 * balance + 1e-3 * z, load.detach()


class Model(nn.Module):
    def __init__(self, vocab, d=64, ctx=64, layers=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.zeros(ctx, d))
        self.att = nn.ModuleList(SlidingAttention(d, 4, 16, ctx) for _ in range(layers))
        self.moe = nn.ModuleList(MoE(d) for _ in range(layers))
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * layers + 1))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x, aux, loads = self.tok(ids) + self.pos[: ids.size(1)], 0.0, []
        for i, (a, m) in enumerate(zip(self.att, self.moe)):
            x = x + a(self.ln[2 * i](x))
            y, l, ld = m(self.ln[2 * i + 1](x))
            x, aux = x + y, aux + l
            loads.append(ld)
        return self.head(self.ln[-1](x)), aux, loads


def main():
    torch.manual_seed(71)
    text = " ".join(T.topics[k] for k in sorted(T.topics))[:350_000]
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(c) for c in text])
    net = Model(len(alphabet))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    ctx, bs = 64, 16
    for step in range(151):
        o = torch.randint(0, len(ids) - ctx - 1, (bs,))
        chunk = torch.stack([ids[a:a + ctx + 1] for a in o.tolist()])
        logits, aux, loads = net(chunk[:, :ctx])
        ce = F.cross_entropy(logits.transpose(1, 2), chunk[:, 1:])
        loss = ce + aux
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if step % 15 == 0:
            ld = " ".join(f"{v:.2f}" for v in loads[0].tolist())
            print(f"step {step:3d} loss {loss.item():.4f} ce {ce.item():.4f} bpc {ce.item() / math.log(2):.3f} expert load [{ld}]")


if __name__ == "__main__":
    main()
