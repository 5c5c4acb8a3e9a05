import math
import random
import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(8)
random.seed(8)

VOCAB, SEQ, DIM = 64, 20, 64


class FrozenFrontEnd(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        self.table.weight.requires_grad_(False)
        pos = torch.arange(SEQ)[:, None] * torch.exp(torch.arange(0, DIM, 2) * (-math.log(1e4) / DIM))
        self.register_buffer("pe", torch.cat([pos.sin(), pos.cos()], -1))

    def forward(self, x):
        return self.table(x) + self.pe


class Encoder(nn.Module):
    def __init__(self, depth=3, classes=4, ckpt=True):
        super().__init__()
        self.front = FrozenFrontEnd()
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)])
        self.norm = nn.LayerNorm(DIM)
        self.classifier = nn.Linear(DIM, classes)
        self.ckpt = ckpt

    def forward(self, x):
        h = self.front(x)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=True) if self.ckpt and self.training else layer(h)
        return self.classifier(self.norm(h).mean(1))


def make(n):
    x = torch.randint(2, VOCAB, (n, SEQ))
    a, b = torch.rand(n, SEQ).argsort(1)[:, :2].unbind(1)
    r = torch.arange(n)
    kind = torch.randint(0, 4, (n,))
    x[r, a] = kind // 2
    x[r, b] = kind % 2
    first = torch.where(a < b, kind // 2, kind % 2)
    second = torch.where(a < b, kind % 2, kind // 2)
    return x, first * 2 + second


import warnings
warnings.filterwarnings("ignore")
net = Encoder()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
ce = nn.CrossEntropyLoss()
for step in range(160):
    net.train()
    x, y = make(32)
    loss = ce(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 159:
        net.eval()
        with torch.no_grad():
            x, y = make(256)
            acc = (net(x).argmax(1) == y).float().mean().item()
        print(f"step={step} loss={loss.item():.4f} acc={acc:.3f}")
