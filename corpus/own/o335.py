import datetime
import random
import torch
import torch.nn as nn

MONTHS = ["January", "February", "March", "April", "May", "June", "July",
          "August", "September", "October", "November", "December"]
CHARS = sorted(set("0123456789-, ./" + "".join(MONTHS) + "".join(MONTHS).lower()))
PAD, SEP = len(CHARS), len(CHARS) + 1
VOCAB = len(CHARS) + 2
IN_LEN, OUT_LEN = 18, 10


def example(rng):
    d = datetime.date(1950, 1, 1) + datetime.timedelta(days=rng.randrange(36500))
    name = MONTHS[d.month - 1]
    forms = [f"{d.day} {name} {d.year}", f"{name} {d.day}, {d.year}", f"{d.day}.{d.month}.{d.year}",
             f"{name[:3]} {d.day} {d.year}", f"{d.month}/{d.day}/{d.year}", f"{d.year} {name[:3].lower()} {d.day}"]
    return rng.choice(forms), d.isoformat()


def batch(rng, n):
    rows = []
    for _ in range(n):
        a, b = example(rng)
        src = [CHARS.index(c) for c in a]
        rows.append(src + [PAD] * (IN_LEN - len(src)) + [SEP] + [CHARS.index(c) for c in b])
    return torch.tensor(rows)


class DateModel(nn.Module):
    def __init__(self, width=8, heads=2, hidden=16, depth=1):
        super().__init__()
        total = IN_LEN + OUT_LEN + 1
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Embedding(total, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, VOCAB)
        self.register_buffer("mask", torch.triu(torch.full((total, total), float("-inf")), 1))

    def forward(self, ids):
        t = ids.size(1)
        h = self.embed(ids) + self.place.weight[:t]
        return self.read(self.norm(self.stack(h, mask=self.mask[:t, :t])))


rng = random.Random(19)
torch.manual_seed(19)
model = DateModel()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
lowered = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=300, pct_start=0.1)
recent = []
for step in range(300):
    ids = batch(rng, 32)
    logits = model(ids[:, :-1])[:, IN_LEN:]
    gold = ids[:, IN_LEN + 1:]
    loss = nn.functional.cross_entropy(logits.reshape(-1, VOCAB), gold.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    lowered.step()
    recent.append(loss.item())
    if step % 30 == 0 or step == 299:
        exact = (logits.argmax(-1) == gold).all(1).float().mean().item()
        print(f"step {step} loss {sum(recent[-10:]) / len(recent[-10:]):.4f} exact {exact:.2f}")
