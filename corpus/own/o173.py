import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(61)

D, SEQ, CH, K = 48, 12, 8, 6
centres = torch.randn(K, SEQ, CH)


def views(n):
    y = torch.randint(0, K, (n,))
    base = centres[y] + 0.5 * torch.randn(n, SEQ, CH)
    jitter = lambda: base * (0.8 + 0.4 * torch.rand(n, 1, 1)) + 0.3 * torch.randn_like(base)
    return jitter(), jitter(), y


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(CH, D)
        self.pos = nn.Parameter(torch.randn(SEQ, D) * 0.05)
        layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D), enable_nested_tensor=False)
        self.proj = nn.Sequential(nn.Linear(D, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))

    def features(self, x):
        return self.enc(self.inp(x) + self.pos).mean(1)

    def forward(self, x):
        return self.proj(self.features(x))


online = Backbone()
target = copy.deepcopy(online)
for p in target.parameters():
    p.requires_grad = False
predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
probe = nn.Linear(D, K)
opt = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=1e-3, weight_decay=1e-4)
opt_probe = torch.optim.Adam(probe.parameters(), lr=1e-2)


def regression(p, z):
    return 2 - 2 * F.cosine_similarity(p, z.detach(), dim=-1).mean()


for step in range(120):
    a, b, y = views(48)
    pa, pb = predictor(online(a)), predictor(online(b))
    with torch.no_grad():
        za, zb = target(a), target(b)
    loss = 0.5 * (regression(pa, zb) + regression(pb, za))
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for q, k in zip(online.parameters(), target.parameters()):
            k.mul_(0.98).add_(q, alpha=0.02)
    with torch.no_grad():
        h = online.features(a)
    logits = probe(h)
    aux = F.cross_entropy(logits, y)
    opt_probe.zero_grad()
    aux.backward()
    opt_probe.step()
    if step % 15 == 0 or step == 119:
        acc = (logits.argmax(1) == y).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} probe {aux.item():.3f} acc {acc:.2f}")
