import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)

VOCAB, N_LANG, CTX = 48, 16, 32
gen = torch.Generator().manual_seed(9)
TABLE = torch.stack([torch.randperm(VOCAB, generator=gen) for _ in range(N_LANG)])


def make_batch(bs, gen):
    lang = torch.randint(N_LANG, (bs,), generator=gen)
    seq = torch.empty(bs, CTX + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(VOCAB, (bs,), generator=gen)
    for t in range(CTX):
        nxt = TABLE[lang, seq[:, t]]
        noise = torch.rand(bs, generator=gen) < 0.1
        seq[:, t + 1] = torch.where(noise, torch.randint(VOCAB, (bs,), generator=gen), nxt)
    seq = seq + N_LANG
    seq[:, 0] = lang
    return seq[:, :-1], seq[:, 1:]


class Switch(nn.Module):
    def __init__(self, d, hidden, n_experts, top_k, aux_weight):
        super().__init__()
        self.top_k, self.n_experts, self.aux_weight = top_k, n_experts, aux_weight
        self.gate = nn.Linear(d, n_experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(n_experts, d, hidden) / math.sqrt(d))
        self.w2 = nn.Parameter(torch.randn(n_experts, hidden, d) / math.sqrt(hidden))
        self.aux = 0.0
        self.load = None

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        probs = self.gate(x).softmax(-1)
        weight, index = probs.topk(self.top_k, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e in range(self.n_experts):
            row, slot = (index == e).nonzero(as_tuple=True)
            if row.numel() == 0:
                continue
            h = F.relu(x[row] @ self.w1[e]) @ self.w2[e]
            out = out.index_add(0, row, weight[row, slot, None] * h)
        frac = F.one_hot(index, self.n_experts).float().sum(1).mean(0)
        self.aux = self.aux_weight * self.n_experts * (frac * probs.mean(0)).sum()
        self.load = frac.detach()
        return out.view(shape)


class Layer(nn.Module):
    def __init__(self, d, heads, moe):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.ff = moe

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.n2(x))


class MoELM(nn.Module):
    def __init__(self, d=48, heads=4, layers=2, hidden=24, n_experts=8, top_k=1, aux_weight=0.01):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + N_LANG, d)
        self.pos = nn.Parameter(torch.randn(CTX, d) * 0.02)
        self.layers = nn.ModuleList(
            Layer(d, heads, Switch(d, hidden, n_experts, top_k, aux_weight)) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, VOCAB + N_LANG)

    def forward(self, ids):
        x = self.emb(ids) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x)), sum(layer.ff.aux for layer in self.layers)


model = MoELM()
opt = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
STEPS = 260
train_gen, val_gen = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
val = make_batch(256, val_gen)

for step in range(STEPS + 1):
    if step % 65 == 0:
        model.eval()
        with torch.no_grad():
            logits, _ = model(val[0])
            vl = F.cross_entropy(logits[:, 1:].flatten(0, 1), val[1][:, 1:].flatten())
            acc = (logits.argmax(-1) == val[1])[:, 1:].float().mean()
        model.train()
        load = " ".join(f"{f:.2f}" for f in model.layers[-1].ff.load)
        print(f"step {step:3d} val loss {vl.item():.4f} val acc {acc.item():.3f} load [{load}]")
    x, y = make_batch(32, train_gen)
    logits, aux = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    opt.zero_grad()
    (loss + aux).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0:
        print(f"step {step:3d} loss {loss.item():.4f} aux {aux.item():.4f}")
