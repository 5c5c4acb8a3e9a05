import copy
import math

import torch
from torch import nn
import torch.nn.functional as F

LEN, CH, CLASSES = 24, 4, 6


def curves(n, gen):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    t = torch.linspace(0, 1, LEN)
    freq = 1.0 + y.float()[:, None, None]
    phase = torch.rand(n, 1, 1, generator=gen) * 0.8
    ch = torch.arange(CH).float()[None, None, :] * 0.4
    x = torch.sin(2 * math.pi * (freq * t[None, :, None] + phase) + ch)
    return x, y


def augment(x, gen):
    amp = 0.7 + 0.6 * torch.rand(len(x), 1, 1, generator=gen)
    keep = (torch.rand(len(x), LEN, 1, generator=gen) > 0.25).float()
    return (x * amp + 0.2 * torch.randn(x.shape, generator=gen)) * keep


class Backbone(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Conv1d(CH, d, 3, padding=1)
        self.pos = nn.Parameter(0.1 * torch.randn(LEN, d))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 96, 0.1, "gelu", batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h = self.stem(x.transpose(1, 2)).transpose(1, 2) + self.pos
        for b in self.blocks:
            h = b(h)
        return self.norm(h).mean(1)


def mlp(i, h, o):
    return nn.Sequential(nn.Linear(i, h), nn.BatchNorm1d(h), nn.ReLU(), nn.Linear(h, o))


def pretrain(backbone, gen, steps=130):
    online = nn.Sequential(backbone, mlp(48, 96, 32))
    predictor = mlp(32, 64, 32)
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=2e-3, weight_decay=1e-3)
    for step in range(steps):
        x, _ = curves(40, gen)
        a, b = augment(x, gen), augment(x, gen)
        with torch.no_grad():
            ta, tb = target(a), target(b)
        pa, pb = predictor(online(a)), predictor(online(b))
        loss = 2 - F.cosine_similarity(pa, tb).mean() - F.cosine_similarity(pb, ta).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        tau = 1 - 0.04 * (math.cos(math.pi * step / steps) + 1) / 2
        with torch.no_grad():
            for t, o in zip(target.parameters(), online.parameters()):
                t.lerp_(o, 1 - tau)
        if step % 20 == 0 or step == steps - 1:
            print(f"ssl step {step:4d} loss {loss.item():.4f}")


def finetune(backbone, gen, steps=150):
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(48, CLASSES))
    stages = {
        0: [(head, 5e-3)],
        50: [(backbone.blocks[1], 1e-3), (backbone.norm, 1e-3)],
        100: [(backbone.blocks[0], 4e-4), (backbone.stem, 2e-4)],
    }
    backbone.requires_grad_(False)
    opt = None
    for step in range(steps):
        for module, lr in stages.get(step, []):
            module.requires_grad_(True)
            group = {"params": list(module.parameters()), "lr": lr}
            if opt is None:
                opt = torch.optim.AdamW([group], weight_decay=0.01)
            else:
                opt.add_param_group(group)
        x, y = curves(40, gen)
        loss = F.cross_entropy(head(backbone(augment(x, gen))), y, label_smoothing=0.05)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"probe step {step:4d} loss {loss.item():.4f}")
    return head


torch.manual_seed(1)
gen = torch.Generator().manual_seed(1)
net = Backbone()
pretrain(net, gen)
head = finetune(net, gen)
net.eval(), head.eval()
with torch.no_grad():
    x, y = curves(500, gen)
    out = head(net(augment(x, gen)))
print(f"accuracy {(out.argmax(1) == y).float().mean():.3f} loss {F.cross_entropy(out, y):.4f}")
