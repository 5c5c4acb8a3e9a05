import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)


def unitwise_norm(x):
    if x.ndim <= 1:
        return x.norm()
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), keepdim=True)


def adaptive_clip(parameters, clip_factor=1e-4, eps=1e-3):
    for p in parameters:
        if p.grad is None:
            continue
        limit = unitwise_norm(p.detach()).clamp_(min=eps) * clip_factor
        gn = unitwise_norm(p.grad)
        scaled = p.grad * (limit / gn.clamp(min=1e-6))
        p.grad.copy_(torch.where(gn > limit, scaled, p.grad))


class MixerLayer(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.ln1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.ln2(x))


class Mixer(nn.Module):
    def __init__(self, dim=48, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, dim, 4, stride=4)
        self.layers = nn.Sequential(*[MixerLayer(16, dim) for _ in range(3)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


templates = F.interpolate(torch.randn(10, 1, 5, 5), size=16, mode="bilinear")


def images(n):
    y = torch.randint(0, 10, (n,))
    return templates[y] + 0.8 * torch.randn(n, 1, 16, 16), y


net = Mixer()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-5)
for step in range(150):
    x, y = images(32)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    adaptive_clip(net.parameters())
    opt.step()
    if step % 15 == 0 or step == 149:
        print(f"[{step:03d}] loss {loss.item():.4f}")
