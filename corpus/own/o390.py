import torch
import torch.nn as nn
import torch.nn.functional as F

BINS, FRAMES, KINDS = 48, 20, 8


class Calls:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.start = torch.tensor([6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 14.0, 26.0])
        self.slope = torch.tensor([0.8, 0.5, -0.4, 0.6, -0.9, -0.6, 1.1, -0.2])

    def __call__(self, n):
        y = torch.randint(KINDS, (n,), generator=self.g)
        t = torch.arange(FRAMES).float()
        centre = self.start[y][:, None] + self.slope[y][:, None] * t + torch.randn(n, 1, generator=self.g)
        f = torch.arange(BINS).float()
        tone = torch.exp(-((f - centre[..., None]) ** 2) / 6.0)
        power = tone * (0.7 + 0.3 * torch.rand(n, 1, 1, generator=self.g)) + 0.5 * torch.rand(n, FRAMES, BINS, generator=self.g)
        low, high = power.amin((1, 2), keepdim=True), power.amax((1, 2), keepdim=True)
        return (power - low) / (high - low), y


class Frontend(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wide = nn.Linear(BINS, 2 * d)
        self.narrow = nn.Linear(2 * d, d)
        for lin in (self.wide, self.narrow):
            nn.init.normal_(lin.weight, -0.08, 0.08)
            nn.init.zeros_(lin.bias)

    def forward(self, spec):
        return self.narrow(F.relu(self.wide(spec)))


class CallNet(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.front = Frontend(d)
        self.time = nn.Parameter(torch.randn(FRAMES, d) * 0.02)
        self.query = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2))
        self.pool = nn.MultiheadAttention(d, heads, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, KINDS))

    def forward(self, spec):
        h = self.front(spec) + self.time
        for layer in self.body:
            h = layer(h)
        pooled, _ = self.pool(self.query.expand(len(h), -1, -1), h, h)
        return self.head(pooled[:, 0])


def train(steps=200):
    torch.manual_seed(9)
    calls, net = Calls(90), CallNet()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for s in range(steps):
        spec, y = calls(32)
        logits = net(spec)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 20 == 0 or s == steps - 1:
            print(f"[{s:03d}] loss={loss.item():.4f} acc={(logits.argmax(-1) == y).float().mean():.3f}")


train()
