import torch
import torch.nn.functional as F

g = torch.Generator().manual_seed(3)
D, H, NL, V, SLOTS, NOKEY = 64, 4, 2, 12, 8, 12
HD = D // H


def normal(*s, std=0.02):
    return (torch.randn(*s, generator=g) * std).requires_grad_()


P = {"key": normal(13, D, std=0.5), "val": normal(V + 1, D, std=0.5),
     "out_w": normal(D, V, std=D ** -0.5), "out_b": normal(V, std=0.0)}
for l in range(NL):
    for n in ("q", "k", "v"):
        P[f"{l}.{n}"] = normal(D, H, HD, std=D ** -0.5)
    P[f"{l}.o"] = normal(H, HD, D, std=D ** -0.5)
    P[f"{l}.up"] = normal(D, 4 * D, std=D ** -0.5)
    P[f"{l}.dn"] = normal(4 * D, D, std=(4 * D) ** -0.5)
    for n in ("g1", "g2"):
        P[f"{l}.{n}"] = torch.ones(D, requires_grad=True)


def rms(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def attend(p, l, x, pad):
    q = torch.einsum("bld,dhe->bhle", x, p[f"{l}.q"])
    k = torch.einsum("bld,dhe->bhle", x, p[f"{l}.k"])
    v = torch.einsum("bld,dhe->bhle", x, p[f"{l}.v"])
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=pad[:, None, None, :])
    return torch.einsum("bhle,hed->bld", o, p[f"{l}.o"])


def forward(p, keys, vals):
    pad = keys == NOKEY
    x = p["key"][keys] + p["val"][vals]
    for l in range(NL):
        x = x + attend(p, l, rms(x, p[f"{l}.g1"]), pad)
        x = x + F.silu(rms(x, p[f"{l}.g2"]) @ p[f"{l}.up"]) @ p[f"{l}.dn"]
    return x[:, -1] @ p["out_w"] + p["out_b"]


def make(n):
    count = torch.randint(3, SLOTS, (n, 1), generator=g)
    empty = torch.arange(SLOTS)[None] >= count
    keys = torch.rand(n, 12, generator=g).argsort(1)[:, :SLOTS].masked_fill(empty, NOKEY)
    vals = torch.randint(0, V, (n, SLOTS), generator=g).masked_fill(empty, V)
    ask = (torch.rand(n, 1, generator=g) * count).long()
    none = torch.full_like(ask, V)
    return torch.cat([keys, keys.gather(1, ask)], 1), torch.cat([vals, none], 1), vals.gather(1, ask).squeeze(1)


m = {k: torch.zeros_like(v) for k, v in P.items()}
s2 = {k: torch.zeros_like(v) for k, v in P.items()}
STEPS, LR = 450, 2e-3
kt, vt, yt = make(1000)
for t in range(1, STEPS + 1):
    ks, vs, y = make(64)
    loss = F.cross_entropy(forward(P, ks, vs), y)
    grads = torch.autograd.grad(loss, list(P.values()))
    lr = LR * min(1, t / 40) * (1 - 0.9 * t / STEPS)
    with torch.no_grad():
        for (k, w), gr in zip(P.items(), grads):
            m[k].mul_(0.9).add_(gr, alpha=0.1)
            s2[k].mul_(0.99).addcmul_(gr, gr, value=0.01)
            w -= lr * (m[k] / (1 - 0.9 ** t)) / ((s2[k] / (1 - 0.99 ** t)).sqrt() + 1e-8)
    if t % 75 == 0 or t == 1:
        with torch.no_grad():
            acc = (forward(P, kt, vt).argmax(-1) == yt).float().mean()
        print(f"{t:4d} loss={loss.item():.4f} lookup acc={acc.item():.3f}")
