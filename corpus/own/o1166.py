import math
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)
SIDE, FRAMES, PATCH, D, H, CODES = 12, 3, 3, 48, 4, 64
NP = FRAMES * (SIDE // PATCH) ** 2


def clips(n):
    t = torch.arange(FRAMES).float()
    yy, xx = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    c = torch.rand(n, 2, 1) * SIDE + (torch.rand(n, 2, 1) * 4 - 2) * t
    r2 = (yy - c[:, 0, :, None, None]) ** 2 + (xx - c[:, 1, :, None, None]) ** 2
    disc = torch.sigmoid(8 - r2)
    bar = torch.rand(n, 1) * SIDE + (torch.rand(n, 1) * 3 - 1.5) * t
    line = torch.exp(-(xx - bar[..., None, None]) ** 2 / 1.5)
    v = disc - line + 0.3 * (yy / SIDE - 0.5)
    g = SIDE // PATCH
    return v.view(n, FRAMES, g, PATCH, g, PATCH).transpose(3, 4).reshape(n, NP, PATCH * PATCH)


class Snap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, book):
        idx = torch.cdist(z.flatten(0, 1), book).argmin(-1).view(z.shape[:2])
        ctx.mark_non_differentiable(idx)
        return book[idx], idx

    @staticmethod
    def backward(ctx, g, _):
        return g, None


def lin(i, o, s=1.0):
    return (s * torch.randn(i, o) / math.sqrt(i)).requires_grad_()


def tower(i, o):
    return {"in": lin(i, D), "pos": (0.2 * torch.randn(NP, D)).requires_grad_(), "qkv": lin(D, 3 * D), "proj": lin(D, D, 0.5),
            "up": lin(D, 3 * D), "down": lin(3 * D, D, 0.5), "out": lin(D, o)}


def run(p, x):
    h = x @ p["in"] + p["pos"]
    q, k, v = (F.layer_norm(h, (D,)) @ p["qkv"]).unflatten(-1, (3, H, D // H)).unbind(2)
    a = torch.einsum("bihd,bjhd->bhij", q, k).mul(1 / math.sqrt(D // H)).softmax(-1)
    h = h + torch.einsum("bhij,bjhd->bihd", a, v).flatten(2) @ p["proj"]
    h = h + F.gelu(F.layer_norm(h, (D,)) @ p["up"]) @ p["down"]
    return F.layer_norm(h, (D,)) @ p["out"]


ZD = 8
enc, dec = tower(PATCH * PATCH, ZD), tower(ZD, PATCH * PATCH)
ps = list(enc.values()) + list(dec.values())
with torch.no_grad():
    book = run(enc, clips(8)).flatten(0, 1)[torch.randperm(8 * NP)[:CODES]].clone()
hits, sums = torch.ones(CODES), book.clone()
opt = torch.optim.AdamW(ps, lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-4)
STEPS = 320
for step in range(1, STEPS + 1):
    x = clips(24)
    z = run(enc, x)
    zq, idx = Snap.apply(z, book)
    rec = F.mse_loss(run(dec, zq), x)
    commit = F.mse_loss(z, book[idx])
    loss = rec + 0.25 * commit * 0.2
    opt.zero_grad()
    loss.backward()
    opt.param_groups[0]["lr"] = 2e-3 * min(1, step / 25) * (1.03 - step / STEPS)
    opt.step()
    with torch.no_grad():
        one = F.one_hot(idx.flatten(), CODES).float()
        hits.mul_(0.95).add_(one.sum(0), alpha=0.05)
        sums.mul_(0.95).add_(one.T @ z.flatten(0, 1), alpha=0.05)
        book = sums / hits[:, None].clamp(min=1e-2)
        if step % 20 == 0 and step < 200:
            cold = (hits < 0.5).nonzero().flatten()
            pick = z.flatten(0, 1)[torch.randperm(z.shape[0] * NP)[:len(cold)]]
            book[cold], sums[cold], hits[cold] = pick, pick, 1.0
    if step % 16 == 0:
        print(f"{step:4d} rec {rec.item():.5f} commit {commit.item():.4f} codes {idx.unique().numel()}")
with torch.no_grad():
    x = clips(100)
    print("clip variance", round(x.var().item(), 5), "rec", round(F.mse_loss(run(dec, Snap.apply(run(enc, x), book)[0]), x).item(), 5))
