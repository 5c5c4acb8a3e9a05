import math

import torch
from torch import nn
from torch.nn import functional as F

WORDS, TAGS, LEN, DIM = 150, 6, 14, 48


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS + 10, DIM)
        self.pos = nn.Embedding(LEN, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.tags = nn.Linear(DIM, TAGS)
        self.domain = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, ids, strength):
        h = self.enc(self.words(ids) + self.pos.weight)
        return self.tags(h), self.domain(Reverse.apply(h.mean(1), strength))


class Corpora:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        world = torch.Generator().manual_seed(40)
        self.base = torch.randint(TAGS, (WORDS,), generator=world)
        rank = torch.arange(1, WORDS + 1).float()
        self.freq = torch.stack([1 / rank ** 0.7, 1 / rank.flip(0) ** 0.7])
        self.freq = self.freq[:, torch.randperm(WORDS, generator=world)]

    def draw(self, n, domain):
        ids = torch.multinomial(self.freq[domain].expand(n, -1), LEN, replacement=True, generator=self.g)
        tag = self.base[ids].clone()
        after = torch.zeros_like(tag, dtype=torch.bool)
        after[:, 1:] = tag[:, :-1] == 0
        tag = torch.where(after, (tag + 1) % TAGS, tag)
        style = torch.rand(n, LEN, generator=self.g) < 0.15
        marks = WORDS + domain * 5 + torch.randint(5, (n, LEN), generator=self.g)
        return torch.where(style, marks, ids), torch.where(style, torch.full_like(tag, -100), tag)


def fit(steps=260, batch=24):
    torch.manual_seed(71)
    data, model = Corpora(1), Tagger()
    test = [Corpora(9).draw(200, d) for d in (0, 1)]
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=1e-4)
    where = torch.tensor([0] * batch + [1] * batch)
    for i in range(1, steps + 1):
        strength = 0.3 * (2 / (1 + math.exp(-8 * i / steps)) - 1)
        src, tags = data.draw(batch, 0)
        tgt, _ = data.draw(batch, 1)
        out, dom = model(torch.cat([src, tgt]), strength)
        tag_loss = F.cross_entropy(out[:batch].flatten(0, 1), tags.flatten(), ignore_index=-100)
        dom_loss = F.cross_entropy(dom, where)
        opt.zero_grad()
        (tag_loss + dom_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if i % 20 == 0 or i == 1:
            print(f"{i:4d} tag {tag_loss.item():.4f} domain {dom_loss.item():.4f} strength {strength:.2f}")
    model.eval()
    with torch.no_grad():
        for d, (ids, t) in enumerate(test):
            keep = t != -100
            acc = (model(ids, 0.0)[0].argmax(-1)[keep] == t[keep]).float().mean().item()
            print(f"domain {d}: tag accuracy {acc:.3f}")


if __name__ == "__main__":
    fit()
