import math
import time
import torch
import torch.nn.functional as F

torch.manual_seed(11)
SIDE, P, STEPS_T = 12, 3, 100
TOK, DIM = (SIDE // P) ** 2, P * P
beta = torch.linspace(1e-4, 0.08, STEPS_T)
abar = torch.cumprod(1 - beta, 0)


def shapes(n, g):
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    cx = torch.randint(2, SIDE - 2, (n, 1, 1), generator=g)
    cy = torch.randint(2, SIDE - 2, (n, 1, 1), generator=g)
    r = torch.randint(2, 5, (n, 1, 1), generator=g)
    disc = (xx - cx) ** 2 + (yy - cy) ** 2 <= r * r
    box = ((xx - cx).abs() <= r) & ((yy - cy).abs() <= r // 2)
    pick = torch.rand(n, 1, 1, generator=g) < 0.5
    return torch.where(pick, disc, box).float() * 2 - 1


def to_tokens(im):
    return im.unfold(1, P, P).unfold(2, P, P).reshape(len(im), TOK, DIM)


def corrupt(x0, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.randint(0, STEPS_T, (len(x0),), generator=g)
    eps = torch.randn(x0.shape, generator=g)
    a = abar[t].view(-1, 1, 1)
    return a.sqrt() * x0 + (1 - a).sqrt() * eps, t


def noise_for(shape, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g)


def time_code(t, d):
    f = torch.exp(-math.log(1000.0) * torch.arange(d // 2) / (d // 2))
    ang = t[:, None].float() * f
    return torch.cat([ang.sin(), ang.cos()], -1)


def make_params(d=72, layers=3):
    def w(i, o, s=1.0):
        return (torch.randn(i, o) * s / math.sqrt(i)).requires_grad_()
    p = {"in": w(DIM, d), "pos": (torch.randn(TOK, d) * 0.1).requires_grad_(),
         "time": w(d, d), "out": w(d, DIM, 0.3)}
    for i in range(layers):
        p[f"qkv{i}"], p[f"o{i}"] = w(d, 3 * d), w(d, d, 0.5)
        p[f"up{i}"], p[f"down{i}"] = w(d, 3 * d), w(3 * d, d, 0.5)
        p[f"mod{i}"] = w(d, 2 * d, 0.2)
    return p


def denoise(p, x, t, d=72, layers=3, heads=4):
    c = F.silu(time_code(t, d) @ p["time"])
    h = x @ p["in"] + p["pos"] + c[:, None]
    for i in range(layers):
        sc, sh = (c @ p[f"mod{i}"])[:, None].chunk(2, -1)
        z = F.layer_norm(h, (d,)) * (1 + sc) + sh
        q, k, v = (u.unflatten(-1, (heads, -1)).transpose(1, 2) for u in (z @ p[f"qkv{i}"]).chunk(3, -1))
        h = h + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) @ p[f"o{i}"]
        z = F.layer_norm(h, (d,)) * (1 + sc) + sh
        h = h + F.gelu(z @ p[f"up{i}"]) @ p[f"down{i}"]
    return F.layer_norm(h, (d,)) @ p["out"]


def main(steps=300, bs=60):
    g = torch.Generator().manual_seed(5)
    imgs = to_tokens(shapes(4096, g))
    p = make_params()
    opt = torch.optim.AdamW(p.values(), lr=2e-3, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=steps, pct_start=0.1)
    t0, run = time.time(), None
    for step in range(steps):
        x0 = imgs[torch.randint(0, len(imgs), (bs,), generator=g)]
        seed = 100_000 + step
        xt, t = corrupt(x0, seed)
        pred = denoise(p, xt, t)
        loss = F.mse_loss(pred, noise_for(x0.shape, seed))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        run = loss.item() if run is None else 0.95 * run + 0.05 * loss.item()
        if step % 30 == 0 or step == steps - 1:
            print(f"step {step:4d}  mse {loss.item():.4f}  avg {run:.4f}  {time.time() - t0:.1f}s")


main()
