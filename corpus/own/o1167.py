import math
import time
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(14)
T, D, H, L, BS, STEPS, SCALE = 16, 64, 4, 3, 48, 420, 1024.0
MODES = torch.tensor([[0, 2, 4, 5, 7, 9, 11, 12], [0, 2, 3, 5, 7, 8, 10, 12.]]) / 6 - 1


def tunes(n):
    mode = MODES[torch.randint(0, 2, (n,))]
    step = torch.tensor([-1, 1])[torch.randint(0, 2, (n, 2, 1))]
    start = torch.randint(0, 8, (n, 2, 1))
    deg = (start + step * torch.arange(T)) % 14
    deg = torch.where(deg > 7, 14 - deg, deg)
    return torch.gather(mode[:, None].expand(n, 2, 8), 2, deg).transpose(1, 2)


def lin(i, o, s=1.0):
    return (s * torch.randn(i, o) / math.sqrt(i)).requires_grad_()


freqs = torch.exp(torch.linspace(0, 4, D // 2))
W = {"in": lin(2, D), "pos": (0.3 * torch.randn(T, D)).requires_grad_(), "t1": lin(D, D), "out": lin(D, 2, 0.1)}
for i in range(L):
    W |= {f"qkv{i}": lin(D, 3 * D), f"o{i}": lin(D, D, 0.5), f"up{i}": lin(D, 3 * D), f"down{i}": lin(3 * D, D, 0.5),
          f"mod{i}": (torch.zeros(D, 2 * D)).requires_grad_()}


def velocity(x, t):
    e = t[:, None] * freqs
    c = F.silu(torch.cat([e.sin(), e.cos()], -1) @ W["t1"])
    h = x @ W["in"] + W["pos"] + c[:, None]
    for i in range(L):
        a, b = (c @ W[f"mod{i}"])[:, None].chunk(2, -1)
        z = F.layer_norm(h, (D,)) * (1 + a) + b
        q, k, v = (z @ W[f"qkv{i}"]).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT / math.sqrt(D // H)).softmax(-1) @ v
        h = h + y.transpose(1, 2).flatten(2) @ W[f"o{i}"]
        h = h + F.gelu(F.layer_norm(h, (D,)) * (1 + a) @ W[f"up{i}"]) @ W[f"down{i}"]
    return F.layer_norm(h, (D,)) @ W["out"]


@torch.no_grad()
def generate(n, k=24):
    x = torch.randn(n, T, 2)
    for j in range(k):
        x = x + velocity(x, torch.full((n,), (j + 0.5) / k)) / k
    return x


ps = list(W.values())
m, v = ([torch.zeros_like(p) for p in ps] for _ in range(2))
slow = [p.detach().clone() for p in ps]
t0, shown = time.time(), 0.0
for n in range(1, STEPS + 1):
    x1, x0, t = tunes(BS), torch.randn(BS, T, 2), torch.rand(BS)
    xt = torch.lerp(x0, x1, t[:, None, None])
    loss = (velocity(xt, t) - (x1 - x0)).square().mean()
    g = torch.autograd.grad(loss * SCALE, ps)
    with torch.no_grad():
        g = torch._foreach_div(g, SCALE)
        size = torch.stack(torch._foreach_norm(g)).norm()
        g = torch._foreach_mul(g, min(1.0, 0.05 / (size.item() + 1e-12)))
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.97)
        torch._foreach_addcmul_(v, g, g, 0.03)
        den = torch._foreach_add(torch._foreach_sqrt(torch._foreach_div(v, 1 - 0.97 ** n)), 1e-10)
        lr = 2.5e-3 * min(1, n / 30) * (1.02 - n / STEPS)
        torch._foreach_addcdiv_(ps, m, den, -lr / (1 - 0.9 ** n))
        torch._foreach_lerp_(slow, ps, min(0.05, 10 / (n + 9)))
    shown += loss.item() / 20
    if n % 20 == 0:
        print(f"{n:4d} loss {shown:.4f} grad norm {size.item():.3f} {time.time() - t0:.1f}s", flush=True)
        shown = 0.0
with torch.no_grad():
    for p, s in zip(ps, slow):
        p.copy_(s)
real = tunes(4000).flatten(1)
near = lambda a: torch.cdist(a.flatten(1), real).amin(1).mean().item() / math.sqrt(2 * T)
print(f"distance to the nearest real tune: noise {near(torch.randn(200, T, 2)):.3f} generated {near(generate(200)):.3f}")
