import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(190)
torch.manual_seed(190)
PAD, BOS, EOS, FIRST, V = 0, 1, 2, 3, 35
PROMPT, REPLY = 6, 8


class Policy(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(V, d, padding_idx=PAD)
        self.pos = nn.Embedding(PROMPT + REPLY + 2, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        m = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.out(self.enc(self.tok(x) + self.pos.weight[:x.size(1)], mask=m, is_causal=True))


def example():
    prompt = [random.randrange(FIRST, V) for _ in range(PROMPT)]
    n = random.randint(3, REPLY - 1)
    good = sorted(random.choices(prompt, k=n))
    bad = [random.choice(prompt) if random.random() < 0.7 else random.randrange(FIRST, V) for _ in range(n)]
    return prompt, good, bad


def rows(pairs):
    ids, labels = [], []
    for p, r in pairs:
        r = r + [EOS]
        gap = REPLY - len(r)
        ids.append([BOS] + p + r + [PAD] * gap)
        labels.append([-100] * (PROMPT + 1) + r + [-100] * gap)
    return torch.tensor(ids), torch.tensor(labels)


def logps(model, ids, labels):
    lp = model(ids[:, :-1]).log_softmax(-1)
    y = labels[:, 1:]
    keep = y != -100
    return (lp.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1) * keep).sum(-1)


policy = Policy()
sft = torch.optim.AdamW(policy.parameters(), lr=2e-3)
for i in range(80):
    ex = [example() for _ in range(24)]
    ids, labels = rows([(p, random.choice((g, b))) for p, g, b in ex])
    loss = F.cross_entropy(policy(ids[:, :-1]).transpose(1, 2), labels[:, 1:])
    sft.zero_grad()
    loss.backward()
    sft.step()
    if i % 20 == 0 or i == 79:
        print(f"sft {i} loss {loss.item():.4f}")

reference = copy.deepcopy(policy).eval().requires_grad_(False)
policy.eval()
opt = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
BETA = 0.1
for i in range(160):
    ex = [example() for _ in range(16)]
    ids, labels = rows([(p, g) for p, g, _ in ex] + [(p, b) for p, _, b in ex])
    ratio = logps(policy, ids, labels)
    with torch.no_grad():
        base = logps(reference, ids, labels)
    win, lose = (BETA * (ratio - base)).chunk(2)
    loss = -F.logsigmoid(win - lose).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0 or i == 159:
        print(f"dpo {i} loss {loss.item():.4f} margin {(win - lose).mean().item():.3f} acc {(win > lose).float().mean().item():.2f}")
