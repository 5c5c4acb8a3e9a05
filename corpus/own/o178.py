import random
import re
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
random.seed(3)
torch.manual_seed(3)


@dataclass
class Settings:
    base_lr: float = 0.03
    momentum: float = 0.98
    tokens: int = 768
    lengths: tuple = (16, 24, 32, 48, 64)
    width: int = 80
    heads: int = 4
    depth: int = 2
    steps: int = 180


cfg = Settings()
text = re.sub(r"\s+", " ", " ".join(topics[k] for k in sorted(topics)))[:300000].lower()
chars = sorted(set(text))
enc = {c: i for i, c in enumerate(chars)}
data = torch.tensor([enc[c] for c in text])


class Net(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.emb = nn.Embedding(v, cfg.width)
        self.pos = nn.Embedding(max(cfg.lengths), cfg.width)
        layer = nn.TransformerEncoderLayer(cfg.width, cfg.heads, 3 * cfg.width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, cfg.depth, norm=nn.LayerNorm(cfg.width), enable_nested_tensor=False)
        self.out = nn.Linear(cfg.width, v)

    def forward(self, x):
        n = x.size(1)
        m = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.emb(x) + self.pos(torch.arange(n))
        return self.out(self.enc(h, mask=m, is_causal=True))


class BucketTrainer:
    def __init__(self, net):
        self.net = net
        self.length = None
        self.optimizer = None

    def set_length(self, n):
        if n == self.length:
            return
        self.length = n
        self.rows = cfg.tokens // n
        lr = cfg.base_lr * (self.rows / 24) ** 0.25
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=cfg.momentum, nesterov=True)

    def batch(self):
        at = torch.randint(0, len(data) - self.length - 1, (self.rows, 1))
        w = data[at + torch.arange(self.length + 1)]
        return w[:, :-1], w[:, 1:]

    def step(self):
        self.set_length(random.choice(cfg.lengths))
        x, y = self.batch()
        logits = self.net(x)
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


trainer = BucketTrainer(Net(len(chars)))
window = []
for i in range(cfg.steps):
    window.append(trainer.step())
    if i % 20 == 0 or i == cfg.steps - 1:
        print(f"[{i:03d}] len={trainer.length} loss={sum(window[-8:]) / len(window[-8:]):.3f}")
