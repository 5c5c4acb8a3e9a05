import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
CH, LEN, CLASSES = 4, 96, 4


def eeg(n, gen):
    t = torch.arange(LEN) / 48.0
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    f = torch.tensor([3.0, 6.0, 10.0, 16.0])[y]
    topo = torch.tensor([[1, .7, .4, .2], [.2, 1, .7, .4], [.4, .2, 1, .7], [.7, .4, .2, 1]])[y]
    ph = 6.283 * torch.rand(n, 1, generator=gen)
    s = torch.sin(2 * math.pi * f[:, None] * t + ph)
    x = topo[:, :, None] * s[:, None] + 0.6 * torch.randn(n, CH, LEN, generator=gen)
    return x, y


def augment(x, gen):
    shift = int(torch.randint(0, LEN, (1,), generator=gen))
    x = torch.roll(x, shift, -1)
    scale = 0.8 + 0.4 * torch.rand(len(x), 1, 1, generator=gen)
    return x * scale + 0.3 * torch.randn(x.shape, generator=gen)


class Encoder(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.patch = nn.Conv1d(CH, d, 8, 8)
        self.pos = nn.Parameter(0.02 * torch.randn(LEN // 8, d))
        layer = nn.TransformerEncoderLayer(d, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)

    def forward(self, x):
        return self.body(self.patch(x).transpose(1, 2) + self.pos).mean(1)


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, o))


online = nn.Sequential(Encoder(), mlp(48, 32))
predictor = mlp(32, 32)
target = copy.deepcopy(online)
for p in target.parameters():
    p.requires_grad_(False)

gen = torch.Generator().manual_seed(31)
unlabeled, _ = eeg(2000, gen)
few_x, few_y = eeg(120, gen)
test_x, test_y = eeg(600, gen)

steps = 300
opt = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=1e-3, weight_decay=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=steps, pct_start=0.1)


def similarity_loss(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()


for step in range(1, steps + 1):
    x = unlabeled[torch.randint(0, len(unlabeled), (64,), generator=gen)]
    a, b = augment(x, gen), augment(x, gen)
    with torch.no_grad():
        za, zb = target(a), target(b)
    loss = similarity_loss(predictor(online(a)), zb) + similarity_loss(predictor(online(b)), za)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    tau = 1 - 0.03 * (math.cos(math.pi * step / steps) + 1) / 2
    with torch.no_grad():
        for po, pt in zip(online.parameters(), target.parameters()):
            pt.lerp_(po, 1 - tau)
        for bo, bt in zip(online.buffers(), target.buffers()):
            bt.copy_(bo)
    if step % 50 == 0:
        print(f"pretrain {step} loss {loss.item():.4f}")

encoder = online[0].eval()
with torch.no_grad():
    ftr, fte = encoder(few_x), encoder(test_x)
mu, sd = ftr.mean(0), ftr.std(0) + 1e-5
ftr, fte = (ftr - mu) / sd, (fte - mu) / sd
probe = nn.Linear(48, CLASSES)
popt = torch.optim.Adam(probe.parameters(), lr=1e-2, weight_decay=1e-3)
for i in range(1, 201):
    loss = F.cross_entropy(probe(ftr), few_y)
    popt.zero_grad()
    loss.backward()
    popt.step()
    if i % 100 == 0:
        print(f"probe {i} loss {loss.item():.4f}")
with torch.no_grad():
    acc = (probe(fte).argmax(1) == test_y).float().mean().item()
print(f"linear probe test accuracy {acc:.4f}")
