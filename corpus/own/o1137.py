import math
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=300)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--frames", type=int, default=60)
ap.add_argument("--lr", type=float, default=2e-3)
args = ap.parse_args()
torch.manual_seed(3)

N_PHONES, N_MELS = 20, 24
MEANS = torch.randn(N_PHONES, N_MELS) * 0.55


class Utterances(Dataset):

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            lab = []
            while len(lab) < args.frames:
                p = int(torch.randint(N_PHONES, (1,), generator=g))
                d = int(torch.randint(3, 9, (1,), generator=g))
                lab += [p] * d
            lab = torch.tensor(lab[:args.frames])
            gain = 0.3 * torch.randn(1, N_MELS, generator=g)
            x = MEANS[lab] + gain + 1.0 * torch.randn(args.frames, N_MELS, generator=g)
            self.items.append((x, lab))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class SinPos(nn.Module):
    def __init__(self, d, n=1000):
        super().__init__()
        t = torch.arange(n)[:, None].float()
        w = torch.exp(torch.arange(0, d, 2).float() * (-math.log(200.0) / d))
        pe = torch.zeros(n, d)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(t * w), torch.cos(t * w)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class PhoneNet(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        self.inp = nn.Linear(N_MELS, d)
        self.pos = SinPos(d)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.05, activation="gelu", norm_first=True, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, N_PHONES)

    def forward(self, feats):
        return self.out(self.enc(self.pos(self.inp(feats))))


train = DataLoader(Utterances(1600, 1), batch_size=args.batch, shuffle=True, drop_last=True)
dev = DataLoader(Utterances(96, 2), batch_size=args.batch)
net = PhoneNet()
opt = torch.optim.Adam(net.parameters(), lr=args.lr, betas=(0.9, 0.98))
sched = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=args.steps, pct_start=0.1)


def evaluate():
    net.eval()
    ok = tot = 0
    with torch.no_grad():
        for x, y in dev:
            ok += (net(x).argmax(-1) == y).sum().item()
            tot += y.numel()
    net.train()
    return ok / tot


it, step, run = iter(train), 0, 0.0
while step < args.steps:
    try:
        x, y = next(it)
    except StopIteration:
        it = iter(train)
        continue
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    sched.step()
    step += 1
    run += loss.item()
    if step % 25 == 0:
        print(f"[{step:4d}/{args.steps}] train loss {run / 25:.4f}", flush=True)
        run = 0.0
    if step % 150 == 0:
        print(f"   dev frame accuracy {evaluate():.3f}", flush=True)
