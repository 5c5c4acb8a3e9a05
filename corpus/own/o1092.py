import torch
import torch.nn as nn
import torch.nn.functional as F


def scans(n, gen, size=24):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = torch.randint(5, size - 5, (2, n, 1, 1), generator=gen)
    r = torch.empty(n, 1, 1).uniform_(1.5, 2.6, generator=gen)
    lesion = ((yy - cy) ** 2 + (xx - cx) ** 2).float() <= r ** 2
    oy, ox = torch.randint(5, size - 5, (2, n, 1, 1), generator=gen)
    vessel = (xx - ox).abs() + 0 * yy <= 1
    img = 0.3 * torch.randn(n, size, size, generator=gen) + 1.2 * lesion + 1.2 * (vessel & ~lesion)
    return img[:, None], lesion.float()


class Segmenter(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.patch = nn.Conv2d(16, d, 3, stride=3)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 64, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.up = nn.ConvTranspose2d(d, 16, 3, stride=3)
        self.mix = nn.Conv2d(32, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 1, 1)
        nn.init.constant_(self.out.bias, -3.5)

    def forward(self, x):
        s = F.gelu(self.stem(x))
        p = self.patch(s)
        b, d, h, w = p.shape
        t = p.flatten(2).transpose(1, 2) + self.pos
        q, k, v = self.qkv(self.n1(t)).view(b, h * w, 3, 4, -1).permute(2, 0, 3, 1, 4)
        t = t + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, d))
        t = t + self.f2(F.gelu(self.f1(self.n2(t))))
        u = self.up(t.transpose(1, 2).reshape(b, d, h, w))
        return self.out(F.gelu(self.mix(torch.cat([s, u], 1)))).squeeze(1)


def focal(logits, target, gamma=2.0, alpha=0.8):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p = torch.sigmoid(logits)
    pt = p * target + (1 - p) * (1 - target)
    weight = alpha * target + (1 - alpha) * (1 - target)
    return (weight * (1 - pt) ** gamma * ce).sum() / target.sum().clamp(min=1)


class MasterAdam:
    def __init__(self, model, lr):
        self.pairs = [(p, p.detach().float().clone().requires_grad_()) for p in model.parameters()]
        self.inner = torch.optim.Adam([m for _, m in self.pairs], lr=lr)

    def zero_grad(self):
        for p, _ in self.pairs:
            p.grad = None

    def step(self):
        for p, m in self.pairs:
            m.grad = p.grad.float()
        norm = nn.utils.clip_grad_norm_([m for _, m in self.pairs], 2.0)
        self.inner.step()
        with torch.no_grad():
            for p, m in self.pairs:
                p.copy_(m)
        return norm.item()


def dice(model, x, y):
    with torch.no_grad():
        p = (model(x.bfloat16()).float() > 0).float()
    return (2 * (p * y).sum() / (p.sum() + y.sum()).clamp(min=1)).item(), y.mean().item()


def main(steps=200, batch=14):
    torch.manual_seed(23)
    gen = torch.Generator().manual_seed(23)
    model = Segmenter().bfloat16()
    opt = MasterAdam(model, lr=2e-3)
    vx, vy = scans(40, torch.Generator().manual_seed(1))
    for step in range(steps):
        x, y = scans(batch, gen)
        loss = focal(model(x.bfloat16()).float(), y)
        opt.zero_grad()
        loss.backward()
        norm = opt.step()
        if step % 20 == 0 or step == steps - 1:
            d, rate = dice(model, vx, vy)
            print(f"step {step:4d} loss {loss.item():.4f} grad norm {norm:.3f} dice {d:.4f} positive rate {rate:.4f}")


main()
