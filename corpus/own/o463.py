import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LEN, CLASSES = 120, 20, 4


def reviews(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    x = torch.randint(CLASSES * 8, VOCAB, (n, LEN), generator=gen)
    for i in range(n):
        k = int(torch.randint(3, 6, (1,), generator=gen))
        at = torch.randperm(LEN, generator=gen)[:k]
        x[i, at] = torch.randint(0, 8, (k,), generator=gen) + 8 * y[i]
        if torch.rand(1, generator=gen) < 0.5:
            x[i, at[0]] = torch.randint(0, CLASSES * 8, (1,), generator=gen)
    return x, y


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wqkv = nn.Parameter(torch.randn(3, h, d, d // h) * d ** -0.5)
        self.wo = nn.Parameter(torch.randn(h, d // h, d) * d ** -0.5)

    def forward(self, x):
        q, k, v = torch.einsum("btd,nhde->nbhte", x, self.wqkv)
        w = torch.einsum("bhqe,bhke->bhqk", q, k).mul(q.size(-1) ** -0.5).softmax(-1)
        return torch.einsum("bhqk,bhke,hed->bqd", w, v, self.wo)


class Classifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.ln1, self.ln2, self.ln3 = (nn.LayerNorm(d) for _ in range(3))
        self.attn = Attn(d, 4)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.out = nn.Linear(d, CLASSES)

    def forward(self, x):
        h = self.emb(x)
        h = h + self.attn(self.ln1(h))
        h = h + self.ffn(self.ln2(h))
        return self.out(self.ln3(h).mean(1))


def run(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    x, y = reviews(3000, gen)
    xv, yv = reviews(600, gen)
    net = Classifier()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    update, running = 0, 0.0
    opt.zero_grad()
    for micro in range(args.updates * args.accumulate):
        i = torch.randint(0, len(x), (args.micro,))
        loss = F.cross_entropy(net(x[i]), y[i])
        loss.backward()
        running += loss.item() / args.accumulate
        if (micro + 1) % args.accumulate == 0:
            opt.step()
            opt.zero_grad()
            if update % 6 == 0 or update == args.updates - 1:
                print(f"update {update:3d} loss {running:.4f}", flush=True)
            update, running = update + 1, 0.0
    with torch.no_grad():
        acc = (net(xv).argmax(1) == yv).float().mean().item()
    print(f"valid accuracy {acc:.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--accumulate", type=int, default=16)
    ap.add_argument("--updates", type=int, default=110)
    ap.add_argument("--seed", type=int, default=41)
    run(ap.parse_args())
