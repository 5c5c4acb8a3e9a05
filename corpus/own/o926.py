import copy
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(30)
torch.manual_seed(30)
PAD, BOS, EOS = 0, 1, 2
WORDS, D = 30, 64
V = WORDS + 3


def sample():
    n = random.choice([2, 3, 4, 5, 7])
    src = [random.randrange(3, V) for _ in range(n)]
    return src + [BOS] + [3 + (w - 3 + 7) % WORDS for w in src] + [EOS], n


def collate(rows):
    width = max(len(r) for r, _ in rows)
    ids = torch.tensor([r + [PAD] * (width - len(r)) for r, _ in rows])
    labels = ids.clone()
    for i, (r, n) in enumerate(rows):
        labels[i, :n + 1] = -100
        labels[i, len(r):] = -100
    return ids, labels


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Embedding(32, D)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        return self.head(self.norm(self.body(self.emb(ids) + self.pos(torch.arange(t)), mask=mask)))


class EMA:
    def __init__(self, model, decay):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - d)


def token_sum(model, ids, labels):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.reshape(-1, V), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum")


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    ids, labels = collate(data)
    n = (labels[:, 1:] != -100).sum()
    loss = token_sum(model, ids, labels) / n
    pred = model(ids[:, :-1]).argmax(-1)
    acc = ((pred == labels[:, 1:]).sum() / n).item()
    model.train()
    return loss.item(), acc


model = LM()
ema = EMA(model, 0.95)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
val = [sample() for _ in range(200)]
ACCUM, MICRO, UPDATES = 4, 8, 240
warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20) * max(0.05, 1 - s / UPDATES))
for update in range(UPDATES):
    micro = [collate([sample() for _ in range(MICRO)]) for _ in range(ACCUM)]
    tokens = sum((labels[:, 1:] != -100).sum().item() for _, labels in micro)
    total = 0.0
    for ids, labels in micro:
        loss = token_sum(model, ids, labels) / tokens
        loss.backward()
        total += loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    warm.step()
    opt.zero_grad()
    ema.update(model)
    if update % 30 == 0 or update == UPDATES - 1:
        print(f"update {update} train loss {total:.4f}")
print("raw weights: val loss %.4f acc %.4f" % evaluate(model, val))
print("ema weights: val loss %.4f acc %.4f" % evaluate(ema.shadow, val))
