import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DTYPE = torch.bfloat16
CFG = dict(image=16, patch=4, dim=64, heads=4, depth=1, classes=6, batch=20, steps=150, lr=1.5e-4, warmup=20)


def glyphs(n, g, proto):
    y = torch.randint(0, CFG["classes"], (n,), generator=g)
    img = proto[y] * (0.7 + 0.6 * torch.rand(n, 1, 1, 1, generator=g))
    return img + 0.3 * torch.randn(img.shape, generator=g), y


class ViT(nn.Module):
    def __init__(self, image, patch, dim, heads, depth, classes, **_):
        super().__init__()
        n = (image // patch) ** 2
        self.patchify = nn.Conv2d(1, dim, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim) * 0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patchify(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x[:, 0]))


def main():
    torch.manual_seed(7)
    g = torch.Generator().manual_seed(8)
    model = ViT(**CFG).to(dtype=DTYPE)
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"], weight_decay=0.01)

    def factor(s):
        if s < CFG["warmup"]:
            return (s + 1) / CFG["warmup"]
        return 0.5 * (1 + math.cos(math.pi * (s - CFG["warmup"]) / (CFG["steps"] - CFG["warmup"])))

    sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    proto = torch.randn(CFG["classes"], 1, 16, 16, generator=g)
    xt, yt = glyphs(2048, g, proto)
    xv, yv = glyphs(96, g, proto)
    for step in range(CFG["steps"]):
        idx = torch.randint(0, len(xt), (CFG["batch"],), generator=g)
        logits = model(xt[idx].to(DTYPE))
        loss = F.cross_entropy(logits.float(), yt[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == CFG["steps"] - 1:
            model.eval()
            with torch.no_grad():
                acc = (model(xv.to(DTYPE)).float().argmax(-1) == yv).float().mean()
            model.train()
            print(f"step {step:4d} loss {loss.item():.4f} val_acc {acc.item():.3f}")


main()
