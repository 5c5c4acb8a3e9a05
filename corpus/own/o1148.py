import math
import time
import torch
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)

CH, T, NCLS = 6, 80, 4
D, LAYERS, BS, STEPS = 48, 2, 48, 360


def make_epochs(n, gen):
    t = torch.arange(T) / 128.0
    y = torch.randint(0, NCLS, (n,), generator=gen)
    early, late = y // 2, y % 2
    x = 0.6 * torch.randn(n, CH, T, generator=gen)
    mix = torch.tensor([[1.0, .8, .5, .2, .1, .0], [.0, .1, .3, .6, .9, 1.0]])
    for i in range(n):
        for which, lo, hi in ((early[i], 4, 22), (late[i], 40, 56)):
            on = int(torch.randint(lo, hi, (1,), generator=gen))
            f = 10.0 if which == 0 else 24.0
            ph = 6.283 * torch.rand(1, generator=gen)
            burst = torch.sin(2 * math.pi * f * t[:16] + ph) * torch.hann_window(16)
            x[i, :, on:on + 16] += 2.2 * mix[0 if lo == 4 else 1][:, None] * burst
    return x.transpose(1, 2).contiguous(), y


class Scan(torch.autograd.Function):

    @staticmethod
    def forward(ctx, a, u):
        h = torch.zeros_like(u[:, 0])
        out = []
        for at, ut in zip(a.unbind(1), u.unbind(1)):
            h = torch.addcmul(ut, at, h)
            out.append(h)
        hs = torch.stack(out, 1)
        ctx.save_for_backward(a, hs)
        return hs

    @staticmethod
    def backward(ctx, gout):
        a, hs = ctx.saved_tensors
        a_s, g_s = a.unbind(1), gout.unbind(1)
        g = g_s[-1]
        acc = [g]
        for t in range(len(g_s) - 2, -1, -1):
            g = torch.addcmul(g_s[t], a_s[t + 1], g)
            acc.append(g)
        gu = torch.stack(acc[::-1], 1)
        prev = F.pad(hs[:, :-1], (0, 0, 1, 0))
        return gu * prev, gu


def init(gen):
    def w(i, o, s=1.0):
        return torch.randn(i, o, generator=gen) * s / math.sqrt(i)
    p = {"stem.w": w(CH * 5, D), "stem.b": torch.zeros(D)}
    for l in range(LAYERS):
        p[f"{l}.n1"] = torch.ones(D)
        p[f"{l}.n2"] = torch.ones(D)
        p[f"{l}.in"] = w(D, 3 * D)
        p[f"{l}.dt"] = torch.linspace(1.0, 4.5, D)
        p[f"{l}.out"] = w(D, D, 0.7)
        p[f"{l}.up"] = w(D, 2 * D)
        p[f"{l}.down"] = w(2 * D, D, 0.7)
    p["nf"] = torch.ones(D)
    p["head"] = w(D, NCLS, 0.3)
    return {k: v.requires_grad_() for k, v in p.items()}


class RMS(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, g):
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        xn = x * r
        ctx.save_for_backward(xn, r, g)
        return xn * g

    @staticmethod
    def backward(ctx, go):
        xn, r, g = ctx.saved_tensors
        gx = go * g
        dx = r * (gx - xn * (gx * xn).sum(-1, keepdim=True))
        dg = (go * xn).reshape(-1, g.numel()).sum(0)
        return dx, dg


rms = RMS.apply


def forward(p, x):
    xp = F.pad(x, (0, 0, 4, 0))
    win = xp.unfold(1, 5, 1).reshape(x.shape[0], T, -1)
    h = F.gelu(win @ p["stem.w"] + p["stem.b"])
    for l in range(LAYERS):
        u, r, z = (rms(h, p[f"{l}.n1"]) @ p[f"{l}.in"]).chunk(3, -1)
        a = torch.sigmoid(p[f"{l}.dt"] + r)
        s = Scan.apply(a, (1 - a) * u)
        h = h + (s * F.silu(z)) @ p[f"{l}.out"]
        h = h + F.gelu(rms(h, p[f"{l}.n2"]) @ p[f"{l}.up"]) @ p[f"{l}.down"]
    return rms(h[:, -1], p["nf"]) @ p["head"]


gen = torch.Generator().manual_seed(11)
xtr, ytr = make_epochs(3000, gen)
xte, yte = make_epochs(400, gen)
params = init(gen)
names = list(params)
opt = torch.optim.AdamW(params.values(), lr=3e-3, weight_decay=0.01)
t0 = time.time()
for step in range(1, STEPS + 1):
    for grp in opt.param_groups:
        grp["lr"] = 3e-3 * min(1, step / 30) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    idx = torch.randint(0, len(xtr), (BS,), generator=gen)
    loss = F.cross_entropy(forward(params, xtr[idx]), ytr[idx])
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
    opt.step()
    if step % 20 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}  {time.time() - t0:.1f}s", flush=True)
with torch.no_grad():
    lo = forward(params, xte)
    print(f"test loss {F.cross_entropy(lo, yte):.4f} acc {(lo.argmax(-1) == yte).float().mean():.3f}")
