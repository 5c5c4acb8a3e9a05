from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)


class Vocab:
    def __init__(self, text):
        self.itos = sorted(set(text))
        self.stoi = {c: i for i, c in enumerate(self.itos)}

    def __len__(self):
        return len(self.itos)

    def ids(self, text):
        return torch.tensor([self.stoi[c] for c in text])


class GatedSkip(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.inner = inner
        self.gate = nn.Parameter(torch.full((dim,), -10.0))

    def forward(self, x):
        return torch.sigmoid(self.gate) * x + self.inner(self.norm(x))


class MQA(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * self.hd, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, self.hd).transpose(1, 2)
        k, v = self.kv(x).view(b, 1, t, 2 * self.hd).chunk(2, -1)
        y = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Trainer:
    def __init__(self, text, dim=64, depth=4, ctx=48, batch=16, lr=2e-3):
        self.vocab = Vocab(text)
        self.data = self.vocab.ids(text)
        self.ctx, self.batch = ctx, batch
        body = []
        for _ in range(depth):
            body.append(GatedSkip(dim, MQA(dim, 4)))
            body.append(GatedSkip(dim, nn.Sequential(nn.Linear(dim, 192), nn.SiLU(), nn.Linear(192, dim))))
        self.embed = nn.Embedding(len(self.vocab), dim)
        self.place = nn.Embedding(ctx, dim)
        self.body = nn.Sequential(*body)
        self.head = nn.Sequential(nn.RMSNorm(dim), nn.Linear(dim, len(self.vocab)))
        self.params = [p for m in (self.embed, self.place, self.body, self.head) for p in m.parameters()]
        self.opt = torch.optim.AdamW(self.params, lr=lr, weight_decay=0.0)

    def batch_loss(self):
        start = torch.randint(len(self.data) - self.ctx - 1, (self.batch, 1))
        w = self.data[start + torch.arange(self.ctx + 1)]
        x = self.embed(w[:, :-1]) + self.place.weight
        logits = self.head(self.body(x))
        return F.cross_entropy(logits.flatten(0, 1), w[:, 1:].flatten())

    def fit(self, steps):
        for n in range(steps):
            loss = self.batch_loss()
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.params, 1.0)
            self.opt.step()
            if n % 20 == 0 or n + 1 == steps:
                print(f"{n:>4} loss={loss:.4f}")


text = "".join(topics[k] for k in sorted(topics))[100000:400000]
Trainer(text).fit(180)
