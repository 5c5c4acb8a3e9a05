import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(23); torch.set_num_threads(1)
K, R = 6, 10

def textures(n, noisy):
    y = torch.randint(0, K, (n,))
    u = torch.arange(R).float()
    th = y.float() * 3.14159 / K
    ph = 6.283 * torch.rand(n)
    arg = 1.3 * (u[None, :, None] * th.cos()[:, None, None] + u[None, None] * th.sin()[:, None, None]) + ph[:, None, None]
    x = torch.sin(arg)[:, None] + 0.7 * torch.randn(n, 1, R, R)
    obs = torch.where(torch.rand(n) < 0.25, torch.randint(0, K, (n,)), y) if noisy else y
    return x, obs

class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **kw):
        super().__init__(params, dict(rho=rho, **kw))
        self.base = base(self.param_groups, **kw)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def climb(self):
        ps = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in ps]).norm() + 1e-12
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is None: continue
                e = p.grad * (g["rho"] / norm)
                p.add_(e)
                self.state[p]["e"] = e
        self.zero_grad()
    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            for p in g["params"]:
                if "e" in self.state[p]: p.sub_(self.state[p].pop("e"))
        self.base.step()
        self.zero_grad()

def blend(x, y):
    t = F.one_hot(y, K).float()
    perm = torch.randperm(len(x))
    lam = torch.distributions.Beta(1.0, 1.0).sample().item()
    if torch.rand(()) < 0.5:
        x = lam * x + (1 - lam) * x[perm]
    else:
        w = int(R * (1 - lam) ** 0.5)
        i, j = torch.randint(0, R - w + 1, (2,)).tolist()
        x = x.clone()
        x[:, :, i:i + w, j:j + w] = x[perm][:, :, i:i + w, j:j + w]
        lam = 1 - w * w / (R * R)
    return x, lam * t + (1 - lam) * t[perm]

net = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
    nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, K))

def bn_momentum(v):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d): m.momentum = v

xtr, ytr = textures(1600, True)
xte, yte = textures(800, False)
opt = SAM(net.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9, weight_decay=5e-4)
EPOCHS, BS = 5, 64
total = EPOCHS * len(xtr) // BS
sched = torch.optim.lr_scheduler.OneCycleLR(opt.base, 0.1, total_steps=total)

def clean_acc():
    net.eval()
    with torch.no_grad(): a = (net(xte).argmax(1) == yte).float().mean().item()
    net.train()
    return a

print(f"initial test acc {clean_acc():.3f}")
step = 0
for ep in range(EPOCHS):
    for idx in torch.randperm(len(xtr)).split(BS):
        x, t = blend(xtr[idx], ytr[idx])
        bn_momentum(0.1)
        out = net(x)
        loss = F.cross_entropy(out, t, label_smoothing=0.05)
        loss.backward()
        opt.climb()
        bn_momentum(0.0)
        F.cross_entropy(net(x), t, label_smoothing=0.05).backward()
        opt.step()
        sched.step()
        step += 1
        if step % 20 == 0:
            fit = (out.argmax(1) == ytr[idx]).float().mean().item()
            print(f"step {step:3d} loss {loss.item():.3f} batch agreement {fit:.2f} test acc {clean_acc():.3f}")
print(f"final test acc {clean_acc():.3f}")
