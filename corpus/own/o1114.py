import keyword
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics
from torch.nn.utils.rnn import pack_padded_sequence


@dataclass
class Settings:
    hidden: int = 48
    emb: int = 24
    batch: int = 32
    epochs: int = 4
    peak_lr: float = 1.2
    label_noise: float = 0.2
    examples: int = 3000
    seed: int = 15


PYTHON = sorted(set(keyword.kwlist) | {"self", "print", "len", "range", "int", "str", "list", "dict"})


def english_words():
    words = set()
    for key in sorted(topics):
        for w in topics[key].lower().split():
            if w.isalpha() and len(w) > 3 and w not in PYTHON:
                words.add(w)
    return sorted(words)[::3]


def make_examples(cfg):
    rng = random.Random(cfg.seed)
    prose = english_words()
    rows = []
    for _ in range(cfg.examples + 500):
        label = rng.randrange(2)
        n = rng.randint(1, 6)
        if label:
            line = " ".join(rng.choice(prose) for _ in range(n))
        else:
            line = "".join(rng.choice(PYTHON) + rng.choice(["(", ")", "=", ":", ".", "_"]) for _ in range(n))
        rows.append((line[:48], label))
    train, test = rows[: cfg.examples], rows[cfg.examples:]
    train = [(x, 1 - y if rng.random() < cfg.label_noise else y) for x, y in train]
    return train, test


def encode(rows):
    ids = [torch.tensor([min(ord(c), 127) for c in x]) for x, _ in rows]
    lengths = torch.tensor([len(i) for i in ids])
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths, torch.tensor([y for _, y in rows])


class LineClassifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(128, cfg.emb)
        self.gru = nn.GRU(cfg.emb, cfg.hidden, batch_first=True)
        self.out = nn.Linear(cfg.hidden, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        _, h = self.gru(packed)
        return self.out(h[-1])


class CurriculumTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        train, test = make_examples(cfg)
        self.train_rows = sorted(train, key=lambda r: len(r[0]))
        self.test = encode(test)
        self.model = LineClassifier(cfg)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        per_epoch = (cfg.examples + cfg.batch - 1) // cfg.batch
        self.sched = torch.optim.lr_scheduler.OneCycleLR(
            self.opt, cfg.peak_lr, total_steps=per_epoch * cfg.epochs, cycle_momentum=False)
        self.order = random.Random(3)

    def batches(self, epoch):
        n = self.cfg.batch
        chunks = [self.train_rows[i:i + n] for i in range(0, len(self.train_rows), n)]
        if epoch > 0:
            self.order.shuffle(chunks)
        return chunks

    def accuracy(self):
        ids, lengths, y = self.test
        with torch.no_grad():
            return (self.model(ids, lengths).argmax(1) == y).float().mean().item()

    def fit(self):
        step = 0
        for epoch in range(self.cfg.epochs):
            for rows in self.batches(epoch):
                ids, lengths, y = encode(rows)
                loss = F.cross_entropy(self.model(ids, lengths), y)
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.opt.step()
                self.sched.step()
                if step % 25 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f} chars {ids.shape[1]} "
                          f"clean test {self.accuracy():.3f}", flush=True)
                step += 1
        print(f"final clean test accuracy {self.accuracy():.3f}")


CurriculumTrainer(Settings()).fit()
