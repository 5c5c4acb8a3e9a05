import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(66)
torch.set_default_dtype(torch.bfloat16)
SYMBOLS, LEN, CLASSES = 32, 16, 10


def make_task():
    table = torch.randint(0, CLASSES, (SYMBOLS,))
    def draw(n):
        x = torch.randint(0, SYMBOLS, (n, LEN))
        y = F.one_hot(table[x], CLASSES).double().mean(1)
        return x, (y + 1e-3 * torch.rand(n, CLASSES, dtype=torch.float64)).argmax(-1)
    return draw


class GatedPool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inner = nn.Linear(d, 2 * d)
        self.outer = nn.Linear(d, d)

    def forward(self, x):
        a, g = self.inner(self.norm(x)).chunk(2, -1)
        pooled = (a * g.sigmoid()).mean(1, keepdim=True)
        return x + self.outer(F.gelu(a) + pooled)


class Voter(nn.Module):
    def __init__(self, d=96, depth=3):
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS, d)
        self.layers = nn.ModuleList(GatedPool(d) for _ in range(depth))
        self.out = nn.Linear(d, CLASSES)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.kaiming_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        h = self.emb(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(h.mean(1))


def lr_at(step, peak, total):
    return peak * min((step + 1) / 20, 0.5 * (1 + math.cos(math.pi * step / total)) + 0.05)


draw = make_task()
model = Voter()
TOTAL, PEAK = 225, 2.5e-4
opt = torch.optim.NAdam(model.parameters(), lr=PEAK)
total_loss = total_hits = 0.0
for step in range(TOTAL):
    opt.param_groups[0]["lr"] = lr_at(step, PEAK, TOTAL)
    x, y = draw(48)
    logits = model(x).float()
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    total_loss += loss.item()
    total_hits += (logits.argmax(-1) == y).float().mean().item()
    if step == 0:
        print(f"step 0 loss {loss.item():.4f}")
    if step % 25 == 24:
        print(f"step {step + 1} loss {total_loss / 25:.4f} acc {total_hits / 25:.3f}")
        total_loss = total_hits = 0.0
