import math
import torch
import torch.nn as nn
import torch.nn.functional as F

"""Two-tower contrastive model ("images" = noisy 12x12 renderings, "captions" = attribute tokens).
Contrastive batch 128 with gradient caching: chunked forward without graph, gradient of the loss w.r.t.
the embeddings, then a second chunked forward/backward with those cached gradients."""

torch.manual_seed(64)
SHAPES, XS, YS = 4, 5, 5


def pairs(n):
    s = torch.randint(0, SHAPES, (n,)); cx = torch.randint(0, XS, (n,)); cy = torch.randint(0, YS, (n,))
    g = torch.arange(12).float()
    dx = (g[None, None] - (2 + 2 * cx.float())[:, None, None]).abs()
    dy = (g[None, :, None] - (2 + 2 * cy.float())[:, None, None]).abs()
    box = torch.maximum(dx, dy); dia = dx + dy
    imgs = torch.stack([(box <= 1).float(), (dia <= 1).float(), (box == 1).float() * 1., ((dx == dy) & (box <= 2)).float()], 1)
    img = imgs[torch.arange(n), s] + 0.15 * torch.randn(n, 12, 12)
    cap = torch.stack([s, SHAPES + cx, SHAPES + XS + cy], 1)
    cap = cap.gather(1, torch.rand(n, 3).argsort(1))
    return img, cap, s * 25 + cx * 5 + cy


class ImageTower(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.f = nn.Sequential(nn.Flatten(), nn.Linear(144, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, d))

    def forward(self, x):
        return F.normalize(self.f(x), dim=-1)


class TextTower(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.e = nn.Embedding(SHAPES + XS + YS, 64)
        self.f = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, d))

    def forward(self, t):
        return F.normalize(self.f(self.e(t).sum(1)), dim=-1)


img_t, txt_t = ImageTower(), TextTower()
log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
params = [*img_t.parameters(), *txt_t.parameters(), log_scale]
opt = torch.optim.AdamW([{"params": params[:-1]}, {"params": [log_scale], "weight_decay": 0.0}], lr=2e-3, weight_decay=0.05)


def clip_loss(a, b, key):
    logits = log_scale.exp() * a @ b.T

    same = (key[:, None] == key[None]).float()
    tgt = same / same.sum(1, keepdim=True)
    return 0.5 * (F.cross_entropy(logits, tgt) + F.cross_entropy(logits.T, tgt))


vi, vt, vk = pairs(400)
STEPS, B, CH = 250, 128, 32
for step in range(STEPS):
    img, cap, key = pairs(B)
    with torch.no_grad():
        za = torch.cat([img_t(c) for c in img.split(CH)])
        zb = torch.cat([txt_t(c) for c in cap.split(CH)])
    za.requires_grad_(); zb.requires_grad_()
    opt.zero_grad()
    loss = clip_loss(za, zb, key)
    loss.backward()
    for ci, ct, ga, gb in zip(img.split(CH), cap.split(CH), za.grad.split(CH), zb.grad.split(CH)):
        surrogate = (img_t(ci) * ga).sum() + (txt_t(ct) * gb).sum()
        surrogate.backward()
    opt.step()
    with torch.no_grad():
        log_scale.clamp_(0, math.log(100))
    if step % 25 == 0 or step == STEPS - 1:
        with torch.no_grad():
            hit = (vk[(img_t(vi) @ txt_t(vt).T).argmax(1)] == vk).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} scale {log_scale.exp().item():.2f} retrieval@1 {hit:.3f}")
