import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(202)


class MasterWeightAdam:
    def __init__(self, params, lr, betas=(0.9, 0.99)):
        self.params = list(params)
        self.lr, self.betas, self.t = lr, betas, 0
        self.master = [p.detach().to(torch.float32).clone() for p in self.params]
        self.m = [torch.zeros(p.shape, dtype=torch.float32) for p in self.params]
        self.v = [torch.zeros(p.shape, dtype=torch.float32) for p in self.params]

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, v, w in zip(self.params, self.m, self.v, self.master):
            g = p.grad.float()
            m.lerp_(g, 1 - b1)
            v.lerp_(g * g, 1 - b2)
            w -= self.lr * (m / (1 - b1 ** self.t)) / ((v / (1 - b2 ** self.t)).sqrt() + 1e-8)
            p.copy_(w)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class Mixer(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.l1, self.l2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.tok = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
        self.chn = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.tok(self.l1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chn(self.l2(x))


class Net(nn.Module):
    def __init__(self, v=32, n=12, d=128, classes=8):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.mix = nn.Sequential(Mixer(n, d), Mixer(n, d))
        self.ln = nn.LayerNorm(d)
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        return self.fc(self.ln(self.mix(self.emb(x))).mean(1))


tag = torch.randint(0, 8, (32,))


def draw(n):
    y = torch.randint(0, 8, (n,))
    x = torch.randint(0, 32, (n, 12))
    for j in range(8):
        pool = (tag == j).nonzero().flatten()
        rows = (y == j).nonzero().flatten()
        if len(pool) and len(rows):
            x[rows[:, None], torch.arange(0, 12, 2)] = pool[torch.randint(len(pool), (len(rows), 6))]
    return x, y


model = Net().to(torch.bfloat16)
opt = MasterWeightAdam(model.parameters(), lr=6e-5)
for i in range(240):
    x, y = draw(32)
    z = model(x).float()
    loss = F.cross_entropy(z, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 24 == 0 or i == 239:
        print(f"iteration {i} loss {loss.item():.4f} acc {(z.argmax(-1) == y).float().mean():.3f}")
