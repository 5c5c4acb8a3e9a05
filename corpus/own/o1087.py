import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def household(n, g):
    num = torch.randn(n, 6, generator=g)
    cat = torch.randint(0, 5, (n, 3), generator=g)
    lift = torch.tensor([-1.0, 0.5, 0.0, 1.0, -0.5])
    base = num[:, 0] * num[:, 1] + lift[cat[:, 0]] + 0.5 * num[:, 2]
    income = base + lift[cat[:, 1]] + 0.2 * torch.randn(n, generator=g)
    default = ((-base + num[:, 3] + 0.3 * torch.randn(n, generator=g)) > 0).float()
    segment = ((num[:, 4] > 0).long() + 2 * (base > 0).long())
    return num, cat, (income, default, segment)


class TabNet(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.num_w = nn.Parameter(torch.randn(6, dim) * 0.3)
        self.num_b = nn.Parameter(torch.randn(6, dim) * 0.3)
        self.cat = nn.ModuleList(nn.Embedding(5, dim) for _ in range(3))
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.1)
        self.trunk = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 80, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.heads = nn.ModuleList([nn.Linear(dim, 1), nn.Linear(dim, 1), nn.Linear(dim, 4)])

    def forward(self, num, cat):
        tok = [num[..., None] * self.num_w + self.num_b]
        tok += [e(cat[:, i])[:, None] for i, e in enumerate(self.cat)]
        x = torch.cat([self.cls.expand(len(num), -1, -1)] + tok, 1)
        for layer in self.trunk:
            x = layer(x)
        x = self.norm(x[:, 0])
        return [h(x) for h in self.heads]


def task_losses(out, targets):
    return [F.mse_loss(out[0][:, 0], targets[0]),
            F.binary_cross_entropy_with_logits(out[1][:, 0], targets[1]),
            F.cross_entropy(out[2], targets[2])]


def flat_grads(losses, params):
    rows = []
    for loss in losses:
        g = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([(torch.zeros_like(p) if gi is None else gi).flatten() for gi, p in zip(g, params)]))
    return rows


def surgery(rows):
    merged, conflicts = torch.zeros_like(rows[0]), 0
    for i, gi in enumerate(rows):
        v = gi.clone()
        others = [j for j in range(len(rows)) if j != i]
        random.shuffle(others)
        for j in others:
            dot = v @ rows[j]
            if dot < 0:
                v = v - dot / rows[j].norm().square() * rows[j]
                conflicts += 1
        merged += v
    return merged, conflicts


def assign(params, flat):
    at = 0
    for p in params:
        p.grad = flat[at:at + p.numel()].view_as(p).clone()
        at += p.numel()


def main(steps=180, batch=64):
    torch.manual_seed(1)
    random.seed(1)
    g = torch.Generator().manual_seed(1)
    net = TabNet()
    params = list(net.parameters())
    opt = torch.optim.Adam(params, lr=2e-3)
    held = household(1000, torch.Generator().manual_seed(2))
    conflicts = 0
    for step in range(steps):
        num, cat, targets = household(batch, g)
        losses = task_losses(net(num, cat), targets)
        grad, c = surgery(flat_grads(losses, params))
        conflicts += c
        assign(params, grad)
        opt.step()
        if step % 15 == 0 or step == steps - 1:
            parts = " ".join(f"{l.item():.3f}" for l in losses)
            print(f"step {step:4d} total {sum(losses).item():.4f} parts {parts} projected {conflicts}")
    with torch.no_grad():
        out = net(held[0], held[1])
        r, d, s = task_losses(out, held[2])
        acc = (out[2].argmax(1) == held[2][2]).float().mean().item()
    print(f"held-out {r.item():.3f} {d.item():.3f} {s.item():.3f} segment accuracy {acc:.3f}")


main()
