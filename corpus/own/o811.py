import copy, math
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(5); torch.set_num_threads(1)
C, T, K = 4, 48, 10

proto = torch.randn(K, C, T)
kern = torch.exp(-0.5 * (torch.arange(-6, 7) / 2.0) ** 2)
proto = F.conv1d(proto.view(K * C, 1, T), (kern / kern.norm()).view(1, 1, -1), padding=6).view(K, C, T)

def sample(n):
    y = torch.randint(0, K, (n,))
    x = proto[y]
    shift = torch.randint(0, T, (n,))
    idx = (torch.arange(T)[None] + shift[:, None]) % T
    x = x.gather(2, idx[:, None].expand(-1, C, -1))
    return x * (0.5 + torch.rand(n, 1, 1)) + 0.9 * torch.randn(n, C, T), y

def augment(x):
    n = len(x)
    idx = (torch.arange(T)[None] + torch.randint(0, T, (n, 1))) % T
    x = x.gather(2, idx[:, None].expand(-1, C, -1))
    x = x * (0.6 + 0.8 * torch.rand(n, 1, 1))
    keep = (torch.rand(n, C, 1) > 0.15).float()
    return x * keep + 0.2 * torch.randn_like(x)

def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))

class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.c = nn.Sequential(
            nn.Conv1d(C, 32, 5, padding=2, padding_mode="circular"), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Conv1d(32, d, 5, stride=2, padding=2, padding_mode="circular"), nn.BatchNorm1d(d), nn.ReLU(),
            nn.Conv1d(d, d, 5, stride=2, padding=2, padding_mode="circular"), nn.BatchNorm1d(d), nn.ReLU())
    def forward(self, x):
        return self.c(x).mean(-1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.proj = Encoder(), mlp(64, 128, 32)
    def forward(self, x):
        return self.proj(self.enc(x))

online = Net()
target = copy.deepcopy(online).requires_grad_(False)
pred = mlp(32, 64, 32)
STEPS = 160
opt = torch.optim.SGD([*online.parameters(), *pred.parameters()], lr=0.2, momentum=0.9, weight_decay=1e-4)

def regress(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()

xtr, ytr = sample(800)
xte, yte = sample(800)

@torch.no_grad()
def probe():
    online.eval()
    a, b = online.enc(xtr), online.enc(xte)
    online.train()
    m, s = a.mean(0), a.std(0) + 1e-5
    a, b = F.normalize((a - m) / s, dim=1), F.normalize((b - m) / s, dim=1)
    cent = F.normalize(torch.stack([a[ytr == k].mean(0) for k in range(K)]), dim=1)
    return ((b @ cent.T).argmax(1) == yte).float().mean().item(), s.mean().item()

print("probe at init acc %.3f, feature std %.3f" % probe())
for step in range(STEPS):
    x, _ = sample(96)
    v1, v2 = augment(x), augment(x)
    with torch.no_grad():
        t1, t2 = target(v1), target(v2)
    loss = 0.5 * (regress(pred(online(v1)), t2) + regress(pred(online(v2)), t1))
    opt.zero_grad(); loss.backward()
    for g in opt.param_groups:
        g["lr"] = 0.2 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
    opt.step()
    m = 1 - (1 - 0.95) * (math.cos(math.pi * step / STEPS) + 1) / 2
    with torch.no_grad():
        for po, pt in zip(online.parameters(), target.parameters()):
            pt.lerp_(po, 1 - m)
    if step % 20 == 0 or step == STEPS - 1:
        acc, sd = probe()
        print(f"step {step} loss {loss.item():.4f} m {m:.4f} probe acc {acc:.3f} feature std {sd:.3f}")
