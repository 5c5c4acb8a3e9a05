import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
V, D, T, E, K, LAYERS = 48, 64, 32, 6, 2, 2


class Experts(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.register_buffer("load_bias", torch.zeros(E))
        self.w_in = nn.Parameter(torch.randn(E, D, hidden) / D ** 0.5)
        self.w_out = nn.Parameter(torch.randn(E, hidden, D) / hidden ** 0.5)
        self.shared = nn.Sequential(nn.Linear(D, 32), nn.SiLU(), nn.Linear(32, D))

    def forward(self, x):
        flat = x.reshape(-1, D)
        score = torch.sigmoid(self.gate(flat))
        pick = (score.detach() + self.load_bias).topk(K, dim=-1).indices
        w = score.gather(1, pick)
        w = w / w.sum(-1, keepdim=True)
        dense = torch.zeros_like(score).scatter(1, pick, w)
        h = F.silu(torch.einsum("nd,edh->enh", flat, self.w_in))
        y = torch.einsum("enh,ehd,ne->nd", h, self.w_out, dense)
        if self.training:
            used = torch.bincount(pick.flatten(), minlength=E).float()
            self.load_bias += 0.002 * torch.sign(used.mean() - used)
            self.used = used / used.sum()
        return (y + self.shared(flat)).view_as(x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.moe = Experts()

    def forward(self, x):
        B, L, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, L, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(B, L, D))
        return x + self.moe(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D)
        nn.init.normal_(self.emb.weight, std=0.05)

    def forward(self, x):
        h = self.emb(x) + self.pos
        for layer in self.layers:
            h = layer(h)
        return F.linear(self.norm(h), self.emb.weight)


g = torch.Generator().manual_seed(4)
maps = torch.stack([torch.randperm(V, generator=g) for _ in range(3)])


def batch(n):
    x = torch.randint(V, (n, T + 1), generator=g)
    lang = torch.randint(3, (n,), generator=g)
    for t in range(1, T + 1):
        ok = torch.rand(n, generator=g) < 0.9
        x[:, t] = torch.where(ok, maps[lang, x[:, t - 1]], x[:, t])
    return x[:, :-1], x[:, 1:]


model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=220, pct_start=0.1)
for it in range(220):
    x, y = batch(16)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if it % 20 == 0 or it == 219:
        use = " ".join(f"{u:.2f}" for u in model.layers[-1].moe.used.tolist())
        print(f"it {it:3d} loss {loss.item():.4f} expert use [{use}]")
model.eval()
with torch.no_grad():
    x, y = batch(64)
    out = model(x)
    print(f"held-out loss {F.cross_entropy(out.flatten(0, 1), y.flatten()).item():.4f} "
          f"acc {(out.argmax(-1) == y).float().mean().item():.3f}")
