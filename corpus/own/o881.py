import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(15)
VOCAB, LEN, QUEUE, TAU = 300, 12, 512, 0.1
topic = torch.softmax(torch.randn(80, VOCAB) * 3, -1)


def views(n):
    t = torch.randint(0, 80, (n,))
    a = torch.multinomial(topic[t], LEN, replacement=True)
    b = torch.multinomial(topic[t], LEN, replacement=True)
    return a, b, t


class SentenceEncoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.word = nn.Embedding(VOCAB, d)
        self.layer = nn.TransformerEncoderLayer(d, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.score = nn.Linear(d, 1)
        self.out = nn.Linear(d, 48)

    def forward(self, x):
        h = self.layer(self.word(x))
        w = self.score(h).softmax(1)
        return F.normalize(self.out((w * h).sum(1)), dim=-1)


class MomentumContrast(nn.Module):
    def __init__(self, m=0.97):
        super().__init__()
        self.online = SentenceEncoder()
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self.m = m
        self.register_buffer("bank", F.normalize(torch.randn(QUEUE, 48), dim=-1))
        self.register_buffer("owner", torch.full((QUEUE,), -1))

    @torch.no_grad()
    def follow(self):
        for s, o in zip(self.slow.parameters(), self.online.parameters()):
            s.lerp_(o, 1 - self.m)

    def forward(self, a, b, t):
        q = self.online(a)
        with torch.no_grad():
            self.follow()
            k = self.slow(b)
        pos = (q * k).sum(-1, keepdim=True)
        neg = q @ self.bank.t()
        neg = neg.masked_fill(self.owner[None] == t[:, None], -4.0)
        logits = torch.cat([pos, neg], 1) / TAU
        self.bank = torch.cat([k, self.bank])[:QUEUE]
        self.owner = torch.cat([t, self.owner])[:QUEUE]
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


net = MomentumContrast()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1.5e-3)
for step in range(300):
    loss = net(*views(48))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        print(f"{step:4d} queue loss {loss.item():.4f}")
with torch.no_grad():
    a, _, ta = views(400)
    b, _, tb = views(400)
    hit = tb[(net.slow(a) @ net.slow(b).t()).argmax(1)] == ta
    print(f"nearest neighbour topic agreement {hit.float().mean().item():.3f} (chance 0.0125)")
