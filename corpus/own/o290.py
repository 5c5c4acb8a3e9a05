import random
import torch
import torch.nn as nn

random.seed(9)
torch.manual_seed(9)
TOPIC = {
    0: "engine wheel brake torque gear clutch piston axle".split(),
    1: "flour butter oven sugar yeast dough whisk bake".split(),
    2: "court judge appeal statute verdict clause plea jury".split(),
    3: "orbit comet lunar probe telescope nebula rocket crater".split(),
}
FILLER = [f"w{i}" for i in range(150)]
VOCAB = {w: i + 1 for i, w in enumerate(FILLER + [w for ws in TOPIC.values() for w in ws])}


def article(label):
    n = random.randint(6, 36)
    return [random.choice(TOPIC[label]) if random.random() < 0.2 else random.choice(FILLER) for _ in range(n)]


def load(n):
    labels = [random.randrange(4) for _ in range(n)]
    return [article(l) for l in labels], labels


def length_buckets(texts, labels, size):
    texts = sorted(texts, key=len)
    chunks = [(texts[i:i + size], labels[i:i + size]) for i in range(0, len(texts), size)]
    random.shuffle(chunks)
    return chunks


def tensorize(texts, labels):
    width = max(map(len, texts))
    ids = torch.tensor([[VOCAB[w] for w in t] + [0] * (width - len(t)) for t in texts])
    return ids, torch.tensor(labels)


class ArticleClassifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(len(VOCAB) + 1, d, padding_idx=0)
        self.lstm = nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.score = nn.Linear(2 * d, 1)
        self.cls = nn.Linear(2 * d, 4)

    def forward(self, ids):
        h, _ = self.lstm(self.emb(ids))
        w = self.score(h).squeeze(-1).masked_fill(ids == 0, float("-inf")).softmax(-1)
        return self.cls((w[..., None] * h).sum(1))


texts, labels = load(4000)
model = ArticleClassifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
step = 0
for epoch in range(2):
    correct = seen = 0
    for chunk in length_buckets(texts, labels, 32):
        x, y = tensorize(*chunk)
        logits = model(x)
        loss = criterion(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        correct += (logits.argmax(-1) == y).sum().item()
        seen += len(y)
        if step % 25 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f} running acc {correct / seen:.3f}")
        step += 1
print(f"finished after {step} steps, loss {loss.item():.4f}, acc {correct / seen:.3f}")
