import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

V, T, B, D, H, E = 14, 40, 16, 64, 4, 4
rule = torch.randint(0, V, (V, V))
seqs = torch.randint(0, V, (600, T + 1))
for j in range(2, T + 1):
    fresh = torch.rand(600) < 0.08
    seqs[:, j] = torch.where(fresh, seqs[:, j], rule[seqs[:, j - 2], seqs[:, j - 1]])


class HeadwiseAttention(nn.Module):
    def __init__(self):
        super().__init__()
        hd = D // H
        self.wq = nn.Parameter(torch.randn(H, D, hd) * D ** -0.5)
        self.wk = nn.Parameter(torch.randn(H, D, hd) * D ** -0.5)
        self.wv = nn.Parameter(torch.randn(H, D, hd) * D ** -0.5)
        self.wo = nn.Parameter(torch.zeros(H, hd, D))

    def forward(self, x):
        q = torch.einsum("btd,hde->bhte", x, self.wq)
        k = torch.einsum("btd,hde->bhte", x, self.wk)
        v = torch.einsum("btd,hde->bhte", x, self.wv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.einsum("bhte,hed->btd", y, self.wo)


class SoftExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E)
        self.w_in = nn.Parameter(torch.randn(E, D, D) * D ** -0.5)
        self.w_out = nn.Parameter(torch.zeros(E, D, D))

    def forward(self, x):
        g = self.router(x).softmax(-1)
        h = F.gelu(torch.einsum("btd,edf->btef", x, self.w_in))
        return torch.einsum("btef,efd,bte->btd", h, self.w_out, g)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.att, self.moe = HeadwiseAttention(), SoftExperts()

    def forward(self, x):
        x = x + self.att(self.n1(x))
        return x + self.moe(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(T, D)
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, V, bias=False)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, x, y):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        for l in self.layers:
            h = l(h)
        z = self.out(self.norm(h))
        return F.cross_entropy(z.flatten(0, 1), y.flatten())


def configure_optimizer(model, lr, wd):
    matrices, vectors = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim == 2:
            matrices.append(p)
        elif p.ndim == 1:
            vectors.append(p)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": wd},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
    )


model = LM()
optimizer = configure_optimizer(model, 3e-3, 0.05)
steps = 200
for it in range(steps):
    lr = 3e-3 * min(1.0, (it + 1) / 15) * (0.55 + 0.45 * math.cos(math.pi * it / steps))
    for g in optimizer.param_groups:
        g["lr"] = lr
    batch = seqs[torch.randint(len(seqs), (B,))]
    x, y = batch[:, :-1], batch[:, 1:]
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 10 == 0 or it == steps - 1:
        print(f"iter {it} loss {loss.item():.4f} lr {lr:.2e}", flush=True)
