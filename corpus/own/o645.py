import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, LEN, DIM, CLASSES, BATCH, STEPS = 60, 12, 32, 6, 32, 200


class MixedPrecision:
    def __init__(self, model, make_opt, dtype=torch.bfloat16):
        self.live = [p for p in model.parameters() if p.requires_grad]
        self.master = [nn.Parameter(p.detach().clone().float()) for p in self.live]
        for p in self.live:
            p.data = p.data.to(dtype)
        self.opt = make_opt(self.master)

    def step(self, max_norm):
        for m, p in zip(self.master, self.live):
            m.grad = p.grad.float()
            p.grad = None
        norm = nn.utils.clip_grad_norm_(self.master, max_norm)
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.master, self.live):
                p.copy_(m)
        return norm


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(WORDS, DIM)
        self.pos = nn.Parameter(torch.randn(LEN, DIM) * 0.2)
        self.block = nn.TransformerEncoderLayer(DIM, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        h = self.block(self.emb(x) + self.pos)
        return self.head(self.norm(h).mean(1)).float()


def texts(n, g):
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = torch.randint(CLASSES * 6, WORDS, (n, LEN), generator=g)
    topical = torch.randint(0, 6, (n, LEN), generator=g) + 6 * y[:, None]
    use = torch.rand(n, LEN, generator=g) < 0.35
    return torch.where(use, topical, x), y


def main():
    torch.manual_seed(81)
    g = torch.Generator().manual_seed(82)
    model = Reader()
    mp = MixedPrecision(model, lambda ps: torch.optim.AdamW(ps, lr=1e-3, weight_decay=0.01))
    xv, yv = texts(128, g)
    for step in range(STEPS):
        x, y = texts(BATCH, g)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        mp.step(1.0)
        if step % 20 == 0 or step == STEPS - 1:
            with torch.no_grad():
                acc = (model(xv).argmax(-1) == yv).float().mean()
            print(f"step {step:4d} loss {loss.item():.4f} acc {acc.item():.3f}")


main()
