import _pydecimal
import html.entities
import inspect
import random
import stringprep

import torch
import torch.nn as nn
from pydoc_data.topics import topics

WIDTH = 64


class ShiftedReLU(nn.Module):
    def __init__(self, shift=1.0):
        super().__init__()
        self.shift = shift

    def forward(self, x):
        return torch.relu(x - self.shift)


class MLP(nn.Module):
    def __init__(self, d_in, d_hidden, d_out):
        super().__init__()
        self.up = nn.Linear(d_in, d_hidden)
        self.act = ShiftedReLU()
        self.down = nn.Linear(d_hidden, d_out)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = MLP(d, 2 * d, d)

    def forward(self, x):
        h = self.n1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


class SourceClassifier(nn.Module):
    def __init__(self, classes, d=56, heads=4, depth=2):
        super().__init__()
        self.byte = nn.Embedding(256, d)
        self.pos = nn.Embedding(WIDTH, d)
        self.blocks = nn.Sequential(*[Block(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = MLP(d, 4 * d, classes)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, x):
        h = self.blocks(self.byte(x) + self.pos.weight)
        return self.head(self.norm(h.mean(1)))


def corpora():
    a = inspect.getsource(_pydecimal).encode()
    b = inspect.getsource(html.entities).encode()
    c = "".join(topics.values()).encode()
    d = inspect.getsource(stringprep).encode()
    return [torch.tensor(list(t[:90000])) for t in (a, b, c, d)]


def draw(texts, n):
    y = [random.randrange(len(texts)) for _ in range(n)]
    rows = []
    for k in y:
        at = random.randrange(len(texts[k]) - WIDTH)
        rows.append(texts[k][at:at + WIDTH])
    return torch.stack(rows), torch.tensor(y)


def train():
    random.seed(12)
    torch.manual_seed(12)
    texts = corpora()
    net = SourceClassifier(len(texts))
    opt = torch.optim.AdamW(net.parameters(), lr=1.5e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=220, pct_start=0.15)
    total, right = 0.0, 0
    for step in range(1, 221):
        x, y = draw(texts, 24)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        total += loss.item()
        right += (logits.argmax(-1) == y).sum().item()
        if step == 1:
            print(f"step 1 loss {loss.item():.4f}")
        if step % 20 == 0:
            print(f"step {step} loss {total / 20:.4f} acc {right / 480:.3f}")
            total, right = 0.0, 0


train()
