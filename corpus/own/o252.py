import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(61)
FEATURES, TOKENS, KINDS = 6, 12, 10
g = torch.Generator().manual_seed(62)
centers = torch.randn(KINDS, TOKENS, FEATURES, generator=g)


def draw(n):
    y = torch.randint(KINDS, (n,), generator=g)
    return centers[y] + 1.1 * torch.randn(n, TOKENS, FEATURES, generator=g), y


class Encoder(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.inp = nn.Linear(FEATURES, d)
        self.pos = nn.Parameter(0.2 * torch.randn(TOKENS, d))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.head = nn.Linear(d, KINDS)

    def forward(self, x):
        h = self.inp(x) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


student = Encoder(48, 2)
average = copy.deepcopy(student).requires_grad_(False).eval()
T = 3.0
opt = torch.optim.SGD(student.parameters(), lr=0.5, momentum=0.0)
for step in range(240):
    x, y = draw(40)
    out = student(x)
    with torch.no_grad():
        soft = F.softmax(average(x) / T, -1)
    hard = F.cross_entropy(out, y, label_smoothing=0.1)
    loss = hard + 0.5 * T * T * F.kl_div(F.log_softmax(out / T, -1), soft, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 2.0)
    opt.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), student.parameters()):
            a.lerp_(p, 0.05)
    if step % 20 == 0 or step == 239:
        acc = (average(x).argmax(-1) == y).float().mean().item()
        print(f"{step:4d} loss {loss.item():.4f} hard {hard.item():.4f} averaged acc {acc:.2f}")
