import random

import torch
from torch import nn

random.seed(13)
torch.manual_seed(13)
VOCAB, LENGTH, GROUP = 60, 40, 5
LIKED = set(random.sample(range(VOCAB), 15))
DISLIKED = set(random.sample([t for t in range(VOCAB) if t not in LIKED], 15))


def worth(tokens):
    pairs = sum(1 for a, b in zip(tokens, tokens[1:]) if a in LIKED and b in LIKED)
    return sum(t in LIKED for t in tokens) - sum(t in DISLIKED for t in tokens) + 2 * pairs


def ranked_group():
    lean = [random.random() for _ in range(GROUP)]
    liked = sorted(LIKED)
    group = [[random.choice(liked) if random.random() < 0.4 * p else random.randrange(VOCAB) for _ in range(LENGTH)]
             for p in lean]
    return sorted(group, key=worth, reverse=True)


class RewardModel(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.value = nn.Linear(d, 1)
        nn.init.normal_(self.value.weight, std=0.01)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids):
        h = self.tok(ids) + self.pos
        for layer in self.layers:
            h = layer(h)
        per_token = nn.functional.softplus(self.value(self.norm(h))).squeeze(-1)
        return per_token.sum(-1)


def listwise_loss(scores, tau=0.4):
    scores = scores / tau
    rest = torch.exp(scores).flip(-1).cumsum(-1).flip(-1).log()
    return -(scores - rest)[:, :-1].sum(-1).mean()


rm = RewardModel()
optimizer = torch.optim.Adam(rm.parameters(), lr=1e-3)
for step in range(140):
    ids = torch.tensor([ranked_group() for _ in range(10)])
    scores = rm(ids.flatten(0, 1)).view(-1, GROUP)
    loss = listwise_loss(scores)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(rm.parameters(), 1.0)
    optimizer.step()
    if step % 10 == 0 or step == 139:
        ordered = (scores[:, :-1] > scores[:, 1:]).float().mean().item()
        print(f"step {step:3d} ranking loss {loss.item():.4f} pairs in order {ordered:.3f}")
