import math
import numpy as np
import torch
import torch.nn.functional as F

SIDE, D, HEADS, DEPTH, ACTIONS = 6, 64, 4, 2, 4
rs = np.random.default_rng(7)
torch.manual_seed(7)


def episodes(n):
    cells = np.stack([rs.permutation(SIDE * SIDE)[:4] for _ in range(n)])
    r, c = cells // SIDE, cells % SIDE
    dr, dc = r[:, 1] - r[:, 0], c[:, 1] - c[:, 0]
    vert = np.where(dr < 0, 0, 1)
    horz = np.where(dc < 0, 2, 3)
    act = np.where(dr != 0, vert, horz)
    nxt = cells[:, 0] + np.where(act == 0, -SIDE, 0) + np.where(act == 1, SIDE, 0)
    hit = (nxt[:, None] == cells[:, 2:]).any(1) & (dr != 0)
    act = np.where(hit, horz, act)
    return torch.from_numpy(cells), torch.from_numpy(act)


def layout():
    shapes = {"cell": (SIDE * SIDE, D), "role": (4, D), "head": (D, ACTIONS)}
    for i in range(DEPTH):
        shapes.update({f"qkv{i}": (D, 3 * D), f"o{i}": (D, D), f"a{i}": (D, 4 * D), f"b{i}": (4 * D, D),
                       f"n{i}": (D,), f"m{i}": (D,)})
    return shapes


SHAPES = layout()
SIZES = [math.prod(s) for s in SHAPES.values()]
STORE = torch.float32


def initial():
    parts = []
    for name, s in SHAPES.items():
        if len(s) == 1:
            parts.append(torch.ones(s))
        elif name in ("cell", "role"):
            parts.append(torch.randn(s).flatten())
        else:
            parts.append((torch.randn(s) / math.sqrt(s[0])).flatten())
    return torch.cat(parts)


def rms(x, g):
    return g * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def policy(flat, obs):
    w = {k: t.view(s) for (k, s), t in zip(SHAPES.items(), flat.split(SIZES))}
    x = w["cell"][obs] + w["role"]
    B, S, _ = x.shape
    for i in range(DEPTH):
        q, k, v = (rms(x, w[f"n{i}"]) @ w[f"qkv{i}"]).view(B, S, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        p = torch.softmax(q @ k.mT / math.sqrt(D / HEADS), -1)
        x = x + (p @ v).transpose(1, 2).reshape(B, S, D) @ w[f"o{i}"]
        x = x + F.silu(rms(x, w[f"m{i}"]) @ w[f"a{i}"]) @ w[f"b{i}"]
    return rms(x[:, 0], 1.0) @ w["head"]


class FlatAdam:
    def __init__(self, theta, lr, b1=0.9, b2=0.99, eps=1e-8):
        self.theta, self.lr, self.b1, self.b2, self.eps, self.t = theta, lr, b1, b2, eps, 0
        self.m = torch.zeros(theta.shape)
        self.v = torch.zeros(theta.shape)

    def apply(self, grad, scale):
        self.t += 1
        g = grad.float()
        self.m.mul_(self.b1).add_(g, alpha=1 - self.b1)
        self.v.mul_(self.b2).addcmul_(g, g, value=1 - self.b2)
        upd = (self.m / (1 - self.b1 ** self.t)) / ((self.v / (1 - self.b2 ** self.t)).sqrt() + self.eps)
        self.theta.sub_((self.lr * scale * upd).to(self.theta.dtype))


obs, act = episodes(20000)
vobs, vact = episodes(2000)
theta = initial().to(STORE)
opt = FlatAdam(theta, lr=2.5e-4)
STEPS, BATCH = 380, 128
for step in range(STEPS):
    rows = torch.from_numpy(rs.integers(0, len(obs), BATCH))
    live = theta.to(torch.float32, copy=True).requires_grad_()
    loss = F.cross_entropy(policy(live, obs[rows]), act[rows])
    (grad,) = torch.autograd.grad(loss, live)
    opt.apply(grad, scale=min(1.0, (step + 1) / 10) * (1.0 - 0.7 * step / STEPS))
    if step % 38 == 0 or step == STEPS - 1:
        print(f"step {step:3d} imitation loss {loss.item():.4f} grad {grad.norm().item():.3f}", flush=True)

with torch.no_grad():
    out = policy(theta.float(), vobs)
    print("validation loss %.4f, agreement with expert %.3f" % (
        F.cross_entropy(out, vact).item(), (out.argmax(1) == vact).float().mean().item()))
