import random
from types import SimpleNamespace
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification

cfg = SimpleNamespace(topics=12, per_topic=400, vocab=400, length=14, buffer_size=128, batch=24, epochs=2, lr=2e-3)
random.seed(4)
torch.manual_seed(4)
lexicon = [random.sample(range(2, cfg.vocab), 25) for _ in range(cfg.topics)]


def write(topic, rng):
    return [1] + [rng.choice(lexicon[topic]) if rng.random() < 0.5 else rng.randrange(2, cfg.vocab)
                  for _ in range(cfg.length - 1)]


def shards(per_topic, seed):
    rng = random.Random(seed)
    for topic in range(cfg.topics):
        yield [(write(topic, rng), topic) for _ in range(per_topic)]


class Stream(IterableDataset):
    def __init__(self, parts, buffer_size=0, seed=0):
        self.parts = list(parts)
        self.buffer_size = buffer_size
        self.seed = seed
        self.epoch = 0

    def records(self):
        for part in self.parts:
            yield from part

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)
        pool = []
        for rec in self.records():
            if len(pool) < self.buffer_size:
                pool.append(rec)
                continue
            if not pool:
                yield rec
                continue
            j = rng.randrange(len(pool))
            out, pool[j] = pool[j], rec
            yield out
        rng.shuffle(pool)
        yield from pool


def collate(recs):
    ids, y = zip(*recs)
    return torch.tensor(ids), torch.tensor(y)


train = Stream(shards(cfg.per_topic, 10), cfg.buffer_size, seed=3)
dev = Stream(shards(40, 20))
model = DistilBertForSequenceClassification(DistilBertConfig(
    vocab_size=cfg.vocab, max_position_embeddings=32, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
    dropout=0.1, attention_dropout=0.1, seq_classif_dropout=0.1, num_labels=cfg.topics))
optim = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
total = cfg.epochs * (cfg.topics * cfg.per_topic // cfg.batch)
sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda s: min(1.0, (s + 1) / 30) * max(0.1, 1 - s / total))
seen = 0
for epoch in range(cfg.epochs):
    train.epoch = epoch
    model.train()
    for ids, y in DataLoader(train, batch_size=cfg.batch, collate_fn=collate, drop_last=True):
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=y).loss
        optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        sched.step()
        if seen % 40 == 0:
            print(f"epoch {epoch} update {seen} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")
        seen += 1

model.eval()
right = count = 0
with torch.no_grad():
    for ids, y in DataLoader(dev, batch_size=80, collate_fn=collate):
        right += (model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.argmax(-1) == y).sum().item()
        count += len(y)
print(f"dev accuracy {right / count:.4f}")
