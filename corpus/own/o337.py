import random
import numpy as np
import torch
import torch.nn as nn

SUBJECT = ["the delivery", "this kettle", "the battery", "my order", "the screen", "the support team", "the fabric"]
GOOD = ["works great", "arrived early", "feels solid", "is a joy to use", "exceeded my hopes", "looks lovely"]
BAD = ["broke quickly", "arrived late", "feels cheap", "is hard to use", "let me down", "looks awful"]
MIX = ["is okay", "does its job", "is average", "could be better but fine", "is neither good nor bad"]
FILL = ["i bought it in may", "my sister has one too", "the box was blue", "it came with a manual",
        "we use it at home", "it was on sale", "i ordered two of them"]


def review(rng):
    label = rng.randrange(3)
    parts = [f"{rng.choice(SUBJECT)} {rng.choice((BAD, MIX, GOOD)[label])}"]
    parts += rng.sample(FILL, rng.randrange(0, 4))
    rng.shuffle(parts)
    return " and ".join(parts).split(), label


def load(n, seed):
    rng = random.Random(seed)
    pairs = [review(rng) for _ in range(n)]
    return [p[0] for p in pairs], np.array([p[1] for p in pairs])


class ReviewModel(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.gru = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.query = nn.Linear(2 * dim, 1)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(2 * dim, 3))

    def forward(self, ids):
        mask = ids != 0
        h, _ = self.gru(self.embed(ids))
        w = self.query(h).squeeze(-1).masked_fill(~mask, -1e9).softmax(-1)
        return self.head((w.unsqueeze(-1) * h).sum(1))


class BucketBatches:
    def __init__(self, sentences, labels, table, size):
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        self.sentences = [sentences[i] for i in order]
        self.labels = labels
        self.table, self.size = table, size

    def __iter__(self):
        starts = list(range(0, len(self.sentences) - self.size + 1, self.size))
        random.shuffle(starts)
        for s in starts:
            chunk = self.sentences[s:s + self.size]
            width = max(map(len, chunk))
            ids = torch.zeros(len(chunk), width, dtype=torch.long)
            for r, words in enumerate(chunk):
                ids[r, :len(words)] = torch.tensor([self.table[w] for w in words])
            yield ids, torch.from_numpy(self.labels[s:s + self.size])


if __name__ == "__main__":
    random.seed(6)
    torch.manual_seed(6)
    sentences, labels = load(4000, 6)
    words = sorted({w for s in sentences for w in s})
    table = {w: i + 1 for i, w in enumerate(words)}
    train = BucketBatches(sentences, labels, table, 32)
    model = ReviewModel(len(words) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    done = 0
    for epoch in range(2):
        model.train()
        for ids, y in train:
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if done % 25 == 0:
                acc = (logits.argmax(-1) == y).float().mean().item()
                print(f"epoch {epoch} batch {done} loss {loss.item():.4f} acc {acc:.3f}")
            done += 1
    print(f"last loss {loss.item():.4f}")
