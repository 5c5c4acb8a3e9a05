import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
NUM, CATS, DIM = 5, [4, 7], 32


def table(n, seed):
    rng = np.random.default_rng(seed)
    effects = np.random.default_rng(0)
    num = rng.normal(0, 1, (n, NUM))
    cat = np.stack([rng.integers(0, c, n) for c in CATS], 1)
    e0, e1 = effects.normal(0, 1, CATS[0]), effects.normal(0, 1, CATS[1])
    y = 1.2 * num[:, 0] * e0[cat[:, 0]] + e1[cat[:, 1]] + np.abs(num[:, 1]) + 0.7 * num[:, 2] + rng.normal(0, 0.2, n)
    y = (y - 0.8) / 1.8
    return (torch.tensor(num, dtype=torch.float32), torch.tensor(cat), torch.tensor(y, dtype=torch.float32))


class FeatureTokenizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM, DIM) * 0.3)
        self.bias = nn.Parameter(torch.randn(NUM, DIM) * 0.3)
        self.tables = nn.ModuleList(nn.Embedding(c, DIM) for c in CATS)
        self.cls = nn.Parameter(torch.randn(1, 1, DIM) * 0.3)

    def forward(self, num, cat):
        tok = num.unsqueeze(-1) * self.weight + self.bias
        cats = torch.stack([t(cat[:, i]) for i, t in enumerate(self.tables)], 1)
        return torch.cat([self.cls.expand(len(num), -1, -1), tok, cats], 1)


class FTTransformer(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.tok = FeatureTokenizer()
        layer = nn.TransformerEncoderLayer(DIM, 4, 3 * DIM, dropout=0.0, activation="gelu", batch_first=True,
                                           norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(DIM), nn.GELU(), nn.Linear(DIM, 1))

    def forward(self, num, cat):
        return self.head(self.body(self.tok(num, cat))[:, 0]).squeeze(-1)


class SplitAdamW:

    def __init__(self, params, lr, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.betas, self.eps, self.wd = lr, betas, eps, weight_decay
        self.main = [p.detach().float().clone() for p in self.params]
        self.m = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.v = [torch.zeros_like(p, dtype=torch.float32) for p in self.params]
        self.t = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, w, m, v in zip(self.params, self.main, self.m, self.v):
            if p.grad is None:
                continue
            g = p.grad.float()
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            update = (m / (1 - b1 ** self.t)) / ((v / (1 - b2 ** self.t)).sqrt() + self.eps)
            w.add_((update + self.wd * w.float()).to(w.dtype), alpha=-self.lr)
            p.copy_(w)


def main(steps=400, batch=64, peak=1.2e-4):
    num, cat, y = table(6000, 1)
    tnum, tcat, ty = table(800, 2)
    model = FTTransformer().to(torch.bfloat16)
    opt = SplitAdamW(model.parameters(), lr=peak)
    gen = torch.Generator().manual_seed(1)
    for step in range(steps):
        opt.lr = peak * min(1.0, (step + 1) / 20)
        idx = torch.randint(0, len(y), (batch,), generator=gen)
        pred = model(num[idx].bfloat16(), cat[idx])
        loss = F.mse_loss(pred.float(), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"step {step:4d}  mse {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        pred = model(tnum.bfloat16(), tcat).float()
    mse = F.mse_loss(pred, ty)
    print(f"test mse {mse:.4f}  R2 {1 - mse / ty.var():.3f}")


if __name__ == "__main__":
    main()
