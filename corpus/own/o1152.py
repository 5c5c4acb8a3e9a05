import math
import time
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)

FRAME, NFR, D, H, LAYERS = 16, 24, 64, 4, 2
N = FRAME * NFR
DT = torch.bfloat16


def waves(n):
    t = torch.arange(N) / 2000.0
    f0 = 40 + 60 * torch.rand(n, 1)
    glide = 1 + 0.15 * torch.randn(n, 1) * t / t[-1]
    clean = torch.zeros(n, N)
    for k in range(1, 5):
        amp = torch.rand(n, 1) / k
        clean += amp * torch.sin(2 * math.pi * k * f0 * t * glide + 6.28 * torch.rand(n, 1))
    clean = clean / clean.std(-1, keepdim=True)
    noisy = clean + 0.8 * torch.randn(n, N)
    return noisy.view(n, NFR, FRAME), clean.view(n, NFR, FRAME)


def w(*shape):
    return torch.randn(*shape) / math.sqrt(shape[0])


init = [w(FRAME, D), 0.5 * torch.randn(NFR, D)]
for _ in range(LAYERS):
    init += [w(D, 3 * D), w(D, D) * 0.5, w(D, 3 * D), w(3 * D, D) * 0.5]
init += [w(D, FRAME)]

master = [p.clone() for p in init]
model = [p.to(DT).requires_grad_() for p in init]


def norm(x):
    x = x.float()
    return ((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)).to(DT)


def denoise(p, x):
    it = iter(p)
    B = x.shape[0]
    h = x.to(DT) @ next(it) + next(it)
    for _ in range(LAYERS):
        q, k, v = (norm(h) @ next(it)).view(B, NFR, 3, H, D // H).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2)).float() / math.sqrt(D // H)
        a = a.softmax(-1).to(DT)
        h = h + (a @ v).transpose(1, 2).reshape(B, NFR, D) @ next(it)
        h = h + F.gelu(norm(h) @ next(it)) @ next(it)
    return (norm(h) @ next(it)).float()


def pseudo_huber(e, c=0.5):
    return (c * c * (torch.sqrt(1 + (e / c) ** 2) - 1)).mean()


m = [torch.zeros_like(p) for p in master]
v = [torch.zeros_like(p) for p in master]
LR, B1, B2, STEPS = 1.2e-4, 0.9, 0.99, 460


@torch.no_grad()
def update(t):
    g = [p.grad.float() for p in model]
    lr = LR * min(1.0, t / 50) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * t / STEPS)))
    torch._foreach_lerp_(m, g, 1 - B1)
    torch._foreach_mul_(v, B2)
    torch._foreach_addcmul_(v, g, g, 1 - B2)
    den = torch._foreach_sqrt(torch._foreach_div(v, 1 - B2 ** t))
    torch._foreach_add_(den, 1e-8)
    torch._foreach_copy_(master, model)
    torch._foreach_addcdiv_(master, m, den, -lr / (1 - B1 ** t))
    torch._foreach_copy_(model, master)
    for p in model:
        p.grad = None


t0 = time.time()
avg = None
for t in range(1, STEPS + 1):
    noisy, clean = waves(24)
    loss = pseudo_huber(denoise(model, noisy) - clean)
    loss.backward()
    update(t)
    avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
    if t % 20 == 0:
        print(f"t={t} loss={avg:.4f} elapsed={time.time() - t0:.1f}")

with torch.no_grad():
    noisy, clean = waves(256)
    est = denoise(model, noisy)
    snr = lambda e: 10 * math.log10(clean.pow(2).mean() / e.pow(2).mean())
    print(f"SNR in {snr(noisy - clean):.2f} dB, out {snr(est - clean):.2f} dB, loss {pseudo_huber(est - clean):.4f}")
