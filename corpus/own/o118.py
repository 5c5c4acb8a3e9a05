import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

FIELDS = (("record", 640), ("device", 4), ("plan", 4), ("age", 5))


def generate(n, seed):
    g = torch.Generator().manual_seed(seed)
    cols = [torch.randperm(640, generator=g)[:n]] + [
        torch.randint(k, (n,), generator=g) for _, k in FIELDS[1:]
    ]
    x = torch.stack(cols, 1)
    score = ((x[:, 2] >= 2).float() * 2 - 1) * ((x[:, 3] > 1).float() * 2 - 1) + 0.6 * (
        (x[:, 1] % 2).float() * 2 - 1
    )
    p = torch.sigmoid(1.2 * score)
    y = (torch.rand(n, generator=g) < p).long()
    return x, y


class TabularTransformer(nn.Module):
    def __init__(self, sizes, width=48, heads=4, depth=2):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(s, width) for s in sizes)
        self.column = nn.Parameter(torch.randn(len(sizes) + 1, width) * 0.1)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, x):
        cells = torch.stack([t(x[:, i]) for i, t in enumerate(self.tables)], 1)
        h = torch.cat([self.cls.expand(len(x), -1, -1), cells], 1) + self.column
        return self.head(self.encoder(h)[:, 0])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--columns", nargs="+", default=[name for name, _ in FIELDS])
    ap.add_argument("--epochs", type=int, default=12)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1.5e-3)
    args = ap.parse_args()
    torch.manual_seed(2)
    pick = [i for i, (name, _) in enumerate(FIELDS) if name in args.columns]
    x, y = generate(640, 1)
    vx, vy = generate(640, 99)
    x, vx = x[:, pick], vx[:, pick]
    model = TabularTransformer([FIELDS[i][1] for i in pick])
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(x)).split(args.batch):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(idx)
        model.eval()
        with torch.no_grad():
            val = F.cross_entropy(model(vx), vy).item()
        print(f"epoch {epoch} train {total / len(x):.4f} val loss {val:.4f}")


if __name__ == "__main__":
    main()
