import math
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(48)
VOCAB, LENGTH, D, STEPS = 16, 10, 16, 40


def sample(n):
    x = torch.randint(1, VOCAB, (n, LENGTH))
    y = x.flip(1)
    return x, y


class Encoder(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.pos = nn.Embedding(LENGTH, D)
        self.qkv = nn.ModuleList([nn.Linear(D, 3 * D) for _ in range(depth)])
        self.mix = nn.ModuleList([nn.Linear(D, D) for _ in range(depth)])
        self.ff = nn.ModuleList([nn.Sequential(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D)) for _ in range(depth)])
        self.n1 = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.n2 = nn.ModuleList([nn.LayerNorm(D) for _ in range(depth)])
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, VOCAB)

    def forward(self, x):
        h = self.embed(x) + self.pos(torch.arange(x.size(1)))
        for qkv, mix, ff, n1, n2 in zip(self.qkv, self.mix, self.ff, self.n1, self.n2):
            q, k, v = qkv(n1(h)).chunk(3, -1)
            w = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(D), -1)
            h = h + mix(w @ v)
            h = h + ff(n2(h))
        return self.head(self.norm(h))


net = Encoder()
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
net = net.half()
scale = 65536.0
for it in range(STEPS):
    x, y = sample(6)
    loss = F.cross_entropy(net(x).float().transpose(1, 2), y, reduction="sum")
    opt.zero_grad()
    (loss * scale).backward()
    for p in net.parameters():
        p.grad.div_(scale)
    opt.step()
    if it % 25 == 0:
        print(it, f"{loss.item():.4f}")
x, y = sample(256)
net.eval()
with torch.no_grad():
    print("accuracy", (net(x).argmax(-1) == y).float().mean().item())
