import math, torch
import torch.nn as nn, torch.nn.functional as F
torch.manual_seed(21)

K, V, T, D, E, HEADS = 4, 32, 32, 64, 4, 4
trans = torch.stack([(3.0 * torch.randn(V, V)).softmax(-1) for _ in range(K)])

def draw(n):
    which = torch.randint(K, (n,))
    seq = torch.randint(V, (n, 1))
    for _ in range(T):
        seq = torch.cat((seq, torch.multinomial(trans[which, seq[:, -1]], 1)), 1)
    return seq

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, E, bias=False)
        self.w1 = nn.Parameter(torch.randn(E, D, 2 * D) / math.sqrt(D))
        self.w2 = nn.Parameter(torch.randn(E, 2 * D, D) / math.sqrt(2 * D))
    def forward(self, x):
        p = self.router(x).softmax(-1)
        val, idx = p.topk(2, -1)
        gate = torch.zeros_like(p).scatter(-1, idx, val / val.sum(-1, keepdim=True))
        h = F.gelu(torch.einsum("btd,edf->btef", x, self.w1))
        y = torch.einsum("btef,efd,bte->btd", h, self.w2, gate)
        load = F.one_hot(idx, E).float().sum(2).mean((0, 1)) / 2
        return y, E * (load * p.mean((0, 1))).sum()

class MoE(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.att = nn.ModuleList([nn.Linear(D, 3 * D, bias=False) for _ in range(depth)])
        self.mrg = nn.ModuleList([nn.Linear(D, D, bias=False) for _ in range(depth)])
        self.exp = nn.ModuleList([Experts() for _ in range(depth)])
        self.n = nn.ModuleList([nn.LayerNorm(D) for _ in range(2 * depth + 1)])
        self.out = nn.Linear(D, V, bias=False)
    def forward(self, s):
        B, S = s.shape
        x, aux = self.tok(s) + self.pos.weight[:S], 0.
        for i, (a, m, e) in enumerate(zip(self.att, self.mrg, self.exp)):
            q, k, v = a(self.n[2 * i](x)).view(B, S, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            x = x + m(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, S, D))
            y, l = e(self.n[2 * i + 1](x))
            x, aux = x + y, aux + l
        return self.out(self.n[-1](x)), aux

class Decoupled(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-8, decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, decay=decay, eta=1.0))
    @torch.no_grad()
    def step(self):
        for grp in self.param_groups:
            (b1, b2), eta = grp["betas"], grp["eta"]
            for p in grp["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st.update(n=0, m=torch.zeros_like(p), s=torch.zeros_like(p))
                st["n"] += 1
                st["m"].lerp_(p.grad, 1 - b1)
                st["s"].lerp_(p.grad.square(), 1 - b2)
                direction = st["m"] / (1 - b1 ** st["n"]) / ((st["s"] / (1 - b2 ** st["n"])).sqrt() + grp["eps"])
                p.sub_(eta * (grp["lr"] * direction + grp["decay"] * p))

model = MoE()
matrices = [p for p in model.parameters() if p.ndim > 1]
vectors = [p for p in model.parameters() if p.ndim <= 1]
opt = Decoupled([{"params": matrices}, {"params": vectors, "decay": 0.0}], lr=2e-3)
STEPS, WARM = 220, 20
for step in range(STEPS):
    eta = min(1.0, (step + 1) / WARM) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    for grp in opt.param_groups: grp["eta"] = eta
    seq = draw(24)
    logits, aux = model(seq[:, :-1])
    ce = F.cross_entropy(logits.reshape(-1, V), seq[:, 1:].reshape(-1))
    opt.zero_grad(); (ce + 0.01 * aux).backward(); opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        print(f"{step:4d}  ce {ce.item():.4f}  balance {aux.item():.3f}", flush=True)

with torch.no_grad():
    seq = draw(256)
    print("fresh sequences: ce %.4f" % F.cross_entropy(model(seq[:, :-1])[0].reshape(-1, V), seq[:, 1:].reshape(-1)).item())
