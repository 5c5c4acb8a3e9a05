import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

FONT = ["01110100011001110101110011000101110", "00100011000010000100001000010001110",
        "01110100010000100010001000100011111", "11111000100010000010000011000101110",
        "00010001100101010010111110001000010", "11111100001111000001000011000101110",
        "00110010001000011110100011000101110", "11111000010001000100010000100001000",
        "01110100011000101110100011000101110", "01110100011000101111000010001001100"]


def glyphs(n, gen):
    base = torch.tensor([[float(c) for c in g] for g in FONT]).view(10, 7, 5)
    y = torch.randint(0, 10, (n,), generator=gen)
    img = torch.zeros(n, 1, 12, 12)
    for i in range(n):
        r, c = torch.randint(1, 5, (1,), generator=gen).item(), torch.randint(2, 6, (1,), generator=gen).item()
        img[i, 0, r:r + 7, c:c + 5] = base[y[i]]
    return img + 0.2 * torch.randn(img.shape, generator=gen), y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 24, 3, padding=1)
        self.c2 = nn.Conv2d(24, 48, 3, padding=1)
        self.f1 = nn.Linear(48 * 9, 128)
        self.f2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = F.dropout(x.flatten(1), 0.2, self.training)
        x = F.dropout(F.relu(self.f1(x)), 0.5, self.training)
        return self.f2(x)


def mixup(x, y, alpha=0.3):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    perm = torch.randperm(len(x))
    onehot = F.one_hot(y, 10).float()
    return lam * x + (1 - lam) * x[perm], lam * onehot + (1 - lam) * onehot[perm]


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    dl = DataLoader(TensorDataset(*glyphs(2400, gen)), 48, shuffle=True, drop_last=True)
    xv, yv = glyphs(600, gen)
    net, step = Net(), 0
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    for epoch in range(8):
        net.train()
        for x, y in dl:
            xm, ym = mixup(x, y)
            loss = F.cross_entropy(net(xm), ym, label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 15 == 0:
                print(f"epoch {epoch} step {step} train loss {loss.item():.4f}", flush=True)
            step += 1
        net.eval()
        with torch.no_grad():
            out = net(xv)
        print(f"epoch {epoch} val loss {F.cross_entropy(out, yv).item():.4f} "
              f"acc {(out.argmax(1) == yv).float().mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
