import math
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(12)
gen = torch.Generator().manual_seed(40)
SHAPES = ["ball", "cube", "ring", "rod", "cone"]
PTS, D, H, L = 40, 48, 4, 2


def scan(kind):
    u = torch.rand(PTS, 3, generator=gen)
    n = torch.randn(PTS, 3, generator=gen)
    a = 2 * math.pi * u[:, 0]
    if kind == "ball":
        p = n / n.norm(dim=-1, keepdim=True)
    elif kind == "cube":
        p = 2 * u - 1
        ax = torch.randint(0, 3, (PTS, 1), generator=gen)
        p = p.scatter(1, ax, torch.sign(n[:, :1]))
    elif kind == "ring":
        b = 2 * math.pi * u[:, 1]
        r = 1 + 0.35 * b.cos()
        p = torch.stack([r * a.cos(), r * a.sin(), 0.35 * b.sin()], -1)
    elif kind == "rod":
        p = torch.stack([0.4 * a.cos(), 0.4 * a.sin(), 3 * u[:, 1] - 1.5], -1)
    else:
        h = u[:, 1].sqrt()
        p = torch.stack([h * a.cos(), h * a.sin(), 1 - 2 * h], -1)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=gen))
    return p @ q * (0.8 + 0.4 * torch.rand(1, generator=gen)) + 0.03 * n


store, labels = {}, []
for i in range(2400):
    c = int(torch.randint(0, len(SHAPES), (1,), generator=gen))
    store[f"scan_{i}"] = scan(SHAPES[c])
    labels.append(c)

clouds = torch.stack([store[key] for key in sorted(store)])
labels = torch.tensor(labels)
xtr, ytr, xva, yva = clouds[:2100], labels[:2100], clouds[2100:], labels[2100:]


def W(*s):
    return (torch.randn(*s) / math.sqrt(s[-2])).requires_grad_()


net = {"lift": W(4, D), "pool": W(1, D), "cls": W(D, len(SHAPES)), "layers": []}
for _ in range(L):
    net["layers"].append({"qkv": W(3, D, D), "o": W(D, D), "f1": W(D, 3 * D), "f2": W(3 * D, D),
                          "far": torch.randn(H).requires_grad_()})


def tensors(o):
    if torch.is_tensor(o):
        yield o
    else:
        for x in (o.values() if isinstance(o, dict) else o):
            yield from tensors(x)


def logits(x):
    B = len(x)
    r = x.norm(dim=-1, keepdim=True)
    d = torch.cdist(x, x)
    h = torch.cat([x, r], -1) @ net["lift"]
    for p in net["layers"]:
        z = F.layer_norm(h, (D,))
        q, k, v = torch.einsum("bnd,cde->cbne", z, p["qkv"]).unflatten(-1, (H, D // H)).transpose(2, 3)
        s = q @ k.transpose(-1, -2) / math.sqrt(D // H) - p["far"][:, None, None] * d[:, None]
        h = h + (s.softmax(-1) @ v).transpose(1, 2).reshape(B, PTS, D) @ p["o"] * 0.5
        h = h + F.gelu(F.layer_norm(h, (D,)) @ p["f1"]) @ p["f2"] * 0.5
    h = F.layer_norm(h, (D,))
    w = torch.softmax(h @ net["pool"].T, 1)
    return (w * h).sum(1) @ net["cls"]


def loss_fn(z, y, eps=0.05):
    z = z - z.amax(-1, keepdim=True).detach()
    lp = z - z.exp().sum(-1, keepdim=True).log()
    t = F.one_hot(y, z.shape[-1]) * (1 - eps) + eps / z.shape[-1]
    return -(t * lp).sum(-1).mean()


ps = list(tensors(net))
opt = torch.optim.AdamW(ps, lr=2e-3, weight_decay=0.02)
EPOCHS, BS = 5, 30
total, done = EPOCHS * (len(xtr) // BS), 0
for epoch in range(EPOCHS):
    order = torch.randperm(len(xtr))
    for chunk in order.split(BS):
        done += 1
        opt.param_groups[0]["lr"] = 2e-3 * min(1, done / 20) * (1.02 - done / total)
        loss = loss_fn(logits(xtr[chunk]), ytr[chunk])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if done % 14 == 0:
            print(f"epoch {epoch} step {done} loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        z = logits(xva)
        print(f"epoch {epoch} val loss {loss_fn(z, yva):.4f} acc {(z.argmax(-1) == yva).float().mean():.3f}")
