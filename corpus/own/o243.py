import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(300)
gen = torch.Generator().manual_seed(301)
VOCAB, PROMPT, ANSWER = 60, 6, 10
GOOD, BAD = torch.arange(5, 20), torch.arange(20, 35)


def quality(answer):
    return torch.isin(answer, GOOD).sum(1) - torch.isin(answer, BAD).sum(1)


def preferences(n):
    prompt = torch.randint(5, VOCAB, (2 * n, PROMPT), generator=gen)[:n]
    a, b = torch.randint(5, VOCAB, (2, n, ANSWER), generator=gen)
    swap = quality(b) > quality(a)
    keep = quality(b) != quality(a)
    chosen, rejected = torch.where(swap[:, None], b, a), torch.where(swap[:, None], a, b)
    return torch.cat([prompt, chosen], 1)[keep], torch.cat([prompt, rejected], 1)[keep]


class ValueHead(nn.Module):
    def __init__(self, width, depth, act=nn.Sigmoid):
        super().__init__()
        layers = []
        for _ in range(depth):
            lin = nn.Linear(width, width)
            nn.init.xavier_normal_(lin.weight, gain=nn.init.calculate_gain("relu"))
            nn.init.zeros_(lin.bias)
            layers += [lin, act()]
        self.stack = nn.Sequential(*layers)
        self.score = nn.Linear(width, 1)

    def forward(self, h):
        return self.score(self.stack(h)).squeeze(-1)


class RewardModel(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(PROMPT + ANSWER, d)
        self.layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.value = ValueHead(d, 7)

    def forward(self, ids):
        h = self.layer(self.tok(ids) + self.pos.weight)
        return self.value(self.norm(h).mean(1) * 4)


model = RewardModel()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
losses, wins = [], []
for step in range(240):
    chosen, rejected = preferences(40)
    r = model(torch.cat([chosen, rejected]))
    margin = r[: len(chosen)] - r[len(chosen):]
    loss = -F.logsigmoid(margin).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())
    wins.append((margin > 0).float().mean().item())
    if step % 20 == 0 or step == 239:
        k = len(losses[-20:])
        print(f"step {step} ranking loss {sum(losses[-20:]) / k:.4f} preference accuracy {sum(wins[-20:]) / k:.3f}")
