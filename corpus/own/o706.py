import math
import time
from pydoc_data import topics

import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(11)


class Callback:
    def on_micro_end(self, trainer):
        pass

    def on_step_end(self, trainer):
        pass

    def on_fit_end(self, trainer):
        pass


class Logger(Callback):
    def __init__(self, every):
        self.every, self.t0 = every, time.time()

    def on_step_end(self, trainer):
        if trainer.step % self.every == 0:
            print(f"step {trainer.step:4d} loss {trainer.last_loss:.4f} ({time.time() - self.t0:.1f}s)")


class CosineSchedule(Callback):

    def __init__(self, peak, warmup, total):
        self.peak, self.warmup, self.total, self.count = peak, warmup, total, 0

    def lr(self, n):
        if n < self.warmup:
            return self.peak * (n + 1) / self.warmup
        frac = min(1.0, (n - self.warmup) / (self.total - self.warmup))
        return 0.5 * self.peak * (1 + math.cos(math.pi * frac))

    def on_micro_end(self, trainer):
        self.count += 1
        for g in trainer.optimizer.param_groups:
            g["lr"] = self.lr(self.count)


class Evaluator(Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_fit_end(self, trainer):
        trainer.model.eval()
        with torch.no_grad():
            losses = [trainer.loss(b).item() for b in self.batches]
        print(f"held-out loss {sum(losses) / len(losses):.4f}")


class Trainer:
    def __init__(self, model, optimizer, accumulate, callbacks):
        self.model, self.optimizer = model, optimizer
        self.accumulate, self.callbacks = accumulate, callbacks
        self.step, self.last_loss = 0, float("nan")

    def call(self, name):
        for cb in self.callbacks:
            getattr(cb, name)(self)

    def loss(self, batch):
        logits = self.model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:])

    def fit(self, stream, steps):
        self.model.train()
        while self.step < steps:
            self.optimizer.zero_grad()
            total = 0.0
            for _ in range(self.accumulate):
                loss = self.loss(next(stream)) / self.accumulate
                loss.backward()
                total += loss.item()
                self.call("on_micro_end")
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.last_loss = total
            self.step += 1
            self.call("on_step_end")
        self.call("on_fit_end")
        print(f"last training loss {self.last_loss:.4f}")


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.kv, self.o = nn.Linear(d, d, False), nn.Linear(d, 2 * d, False), nn.Linear(d, d, False)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        y = self.n1(x)
        q = self.q(y).view(b, t, self.h, -1).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LM(nn.Module):
    def __init__(self, vocab, d=56, h=4, layers=2, length=32):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocab)

    def forward(self, x):
        h = self.emb(x) + self.pos.weight[: x.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


def stream(data, batch, length, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(len(data) - length - 1, (batch, 1), generator=g)
        yield data[start + torch.arange(length + 1)]


raw = "\n".join(v for _, v in sorted(topics.topics.items())).encode("ascii", "ignore")[:300_000]
symbols = sorted(set(raw))
table = torch.zeros(256, dtype=torch.long)
table[torch.tensor(symbols)] = torch.arange(len(symbols))
data = table[torch.tensor(list(raw))]
split = int(len(data) * 0.92)

steps, accumulate = 200, 4
model = LM(len(symbols))
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05)
held = stream(data[split:], 32, 32, 5)
callbacks = [
    CosineSchedule(peak=4e-3, warmup=20, total=steps),
    Logger(20),
    Evaluator([next(held) for _ in range(6)]),
]
Trainer(model, opt, accumulate, callbacks).fit(stream(data[:split], 8, 32, 4), steps)
