import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 48
    seq: int = 16
    dim: int = 48
    heads: int = 4
    layers: int = 2
    batch: int = 24
    mlm_steps: int = 60
    clf_steps: int = 170
    lr: float = 2e-3
    mask_id: int = 1
    cls_id: int = 2


class Encoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c.vocab, c.dim)
        self.pos = nn.Parameter(torch.randn(c.seq, c.dim) * 0.1)
        nn.init.normal_(self.tok.weight, std=0.3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(c.dim, c.heads, 2 * c.dim, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(c.layers)
        )
        self.norm = nn.LayerNorm(c.dim)

    def forward(self, x):
        h = self.tok(x) + self.pos[: x.shape[1]]
        for b in self.blocks:
            h = b(h)
        return self.norm(h)


class MaskedLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder = Encoder(c)
        self.out = nn.Linear(c.dim, c.vocab)

    def forward(self, x):
        return self.out(self.encoder(x))


class Classifier(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder = Encoder(c)
        self.head = nn.Sequential(nn.Linear(c.dim, c.dim), nn.Tanh(), nn.Linear(c.dim, 4))

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


def sample(c, n, g):
    start = torch.randint(0, 40, (n, 1), generator=g)
    stride = torch.randint(1, 5, (n, 1), generator=g)
    body = (start + stride * torch.arange(c.seq - 1)) % 40 + 8
    noise = torch.randint(8, 48, body.shape, generator=g)
    flip = torch.rand(body.shape, generator=g) < 0.15
    body = torch.where(flip, noise, body)
    x = torch.cat([torch.full((n, 1), c.cls_id), body], 1)
    return x, stride[:, 0] - 1


def pretrain(c, g):
    model = MaskedLM(c)
    opt = torch.optim.AdamW(model.parameters(), lr=c.lr)
    for step in range(c.mlm_steps):
        x, _ = sample(c, c.batch, g)
        m = torch.rand(x.shape, generator=g) < 0.2
        m[:, 0] = False
        logits = model(x.masked_fill(m, c.mask_id))
        loss = F.cross_entropy(logits[m], x[m])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"mlm {step:4d} loss {loss.item():.4f}")
    return copy.deepcopy(model.encoder.state_dict())


def main():
    torch.manual_seed(11)
    g = torch.Generator().manual_seed(12)
    c = Config()
    weights = pretrain(c, g)

    model = Classifier(c)
    opt = torch.optim.AdamW(
        [
            {"params": model.encoder.parameters(), "lr": c.lr},
            {"params": model.head.parameters(), "lr": c.lr},
        ],
        weight_decay=0.01,
    )
    model.encoder.load_state_dict(weights, assign=True)
    xv, yv = sample(c, 256, g)
    for step in range(c.clf_steps):
        x, y = sample(c, c.batch, g)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == c.clf_steps - 1:
            with torch.no_grad():
                acc = (model(xv).argmax(-1) == yv).float().mean()
            print(f"clf {step:4d} loss {loss.item():.4f} val_acc {acc.item():.3f}")


if __name__ == "__main__":
    main()
