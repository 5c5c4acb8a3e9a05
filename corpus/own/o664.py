import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


@dataclass
class Config:
    max_len: int = 112
    d_model: int = 48
    n_head: int = 4
    n_layer: int = 2
    batch_size: int = 10
    steps: int = 200
    lr: float = 3e-3
    warmup: int = 20
    fim_rate: float = 0.7
    seed: int = 11


class Tokenizer:
    def __init__(self, alphabet):
        special = ["<pad>", "<pre>", "<suf>", "<mid>", "<eot>"]
        self.itos = special + sorted(alphabet)
        self.stoi = {s: i for i, s in enumerate(self.itos)}
        self.pad, self.pre, self.suf, self.mid, self.eot = range(5)

    def __len__(self):
        return len(self.itos)

    def encode(self, s):
        return [self.stoi[c] for c in s]


NAMES = ["a", "b", "x", "y", "n", "row", "acc"]
OPS = ["+", "-", "*"]


def make_function(rng):
    f = rng.choice(["add", "mix", "fold", "scan"])
    p, q = rng.sample(NAMES, 2)
    lines = [f"def {f}({p}, {q}):"]
    if rng.random() < 0.5:
        lines.append(f"    {p} = {p} {rng.choice(OPS)} {q}")
    if rng.random() < 0.2:
        lines.append(f"    if {q} > {p}:\n        return {q}")
    lines.append(f"    return {p}")
    return "\n".join(lines) + "\n"


class FimDataset(Dataset):
    def __init__(self, n, tok, cfg, seed):
        self.rng = random.Random(seed)
        self.tok, self.cfg = tok, cfg
        self.sources = [make_function(self.rng) for _ in range(n)]

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, i):
        t, src = self.tok, self.sources[i]
        if self.rng.random() < self.cfg.fim_rate:
            lo, hi = sorted(self.rng.sample(range(len(src) + 1), 2))
            ids = ([t.pre] + t.encode(src[:lo]) + [t.suf] + t.encode(src[hi:])
                   + [t.mid] + t.encode(src[lo:hi]) + [t.eot])
        else:
            ids = [t.pre] + t.encode(src) + [t.eot]
        return ids[: self.cfg.max_len + 1]


class Collator:

    def __init__(self, tok, cfg):
        self.tok, self.width = tok, cfg.max_len

    def __call__(self, items):
        x = torch.full((len(items), self.width), self.tok.pad)
        y = torch.full((len(items), self.width), self.tok.pad)
        for r, ids in enumerate(items):
            n = len(ids) - 1
            x[r, :n] = torch.tensor(ids[:-1])
            y[r, :n] = torch.tensor(ids[1:])
        return x, y


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.h = c.n_head
        self.n1, self.n2 = nn.LayerNorm(c.d_model), nn.LayerNorm(c.d_model)
        self.qkv = nn.Linear(c.d_model, 3 * c.d_model)
        self.proj = nn.Linear(c.d_model, c.d_model)
        self.mlp = nn.Sequential(nn.Linear(c.d_model, 4 * c.d_model), nn.GELU(),
                                 nn.Linear(4 * c.d_model, c.d_model))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.n2(x))


class CodeModel(nn.Module):
    def __init__(self, vocab, c):
        super().__init__()
        self.tok = nn.Embedding(vocab, c.d_model)
        self.pos = nn.Embedding(c.max_len, c.d_model)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.norm = nn.LayerNorm(c.d_model)
        self.head = nn.Linear(c.d_model, vocab, bias=False)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


class PrintLoss:
    def __init__(self, every):
        self.every, self.buf = every, []

    def on_step(self, trainer, loss):
        self.buf.append(loss)
        if trainer.step % self.every == 0:
            print(f"step {trainer.step:4d}  loss {sum(self.buf) / len(self.buf):.4f}")
            self.buf.clear()


class Trainer:
    def __init__(self, model, loader, cfg, callbacks=()):
        self.model, self.loader, self.cfg = model, loader, cfg
        self.callbacks = callbacks
        self.opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, self.factor)
        self.criterion = nn.CrossEntropyLoss(ignore_index=-100)
        self.step = 0

    def factor(self, s):
        if s < self.cfg.warmup:
            return (s + 1) / self.cfg.warmup
        return 1 - 0.9 * (s - self.cfg.warmup) / (self.cfg.steps - self.cfg.warmup)

    def loss(self, x, y):
        return self.criterion(self.model(x).flatten(0, 1), y.flatten())

    def fit(self):
        while self.step < self.cfg.steps:
            for x, y in self.loader:
                loss = self.loss(x, y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                self.step += 1
                for cb in self.callbacks:
                    cb.on_step(self, loss.item())
                if self.step >= self.cfg.steps:
                    return

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        losses = [self.loss(x, y).item() for x, y in loader]
        self.model.train()
        return sum(losses) / len(losses)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    tok = Tokenizer(set("abcdefghijklmnopqrstuvwxyz()+-*=>:,. \n"))
    train, valid = FimDataset(3000, tok, cfg, 1), FimDataset(96, tok, cfg, 2)
    collate = Collator(tok, cfg)
    model = CodeModel(len(tok), cfg)
    trainer = Trainer(model, DataLoader(train, cfg.batch_size, shuffle=True, collate_fn=collate),
                      cfg, [PrintLoss(20)])
    trainer.fit()
    print(f"validation loss {trainer.evaluate(DataLoader(valid, 32, collate_fn=collate)):.4f}")


if __name__ == "__main__":
    main()
