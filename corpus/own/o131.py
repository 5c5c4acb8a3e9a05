import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(21)

WORDS, CLASSES, LENGTH = 300, 6, 16
DTYPE = torch.bfloat16
profiles = torch.distributions.Dirichlet(torch.full((WORDS,), 0.1)).sample((CLASSES,))


def documents(n):
    label = torch.randint(CLASSES, (n,))
    return torch.multinomial(profiles[label], LENGTH, replacement=True), label


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.h, d // self.h).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        return self.wo(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))


class Reader(nn.Module):
    def __init__(self, d=128, h=4):
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, d), nn.Embedding(LENGTH, d)
        self.attn = Attn(d, h)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.n1, self.n2, self.nf = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight
        h = h + self.attn(self.n1(h))
        h = h + self.mlp(self.n2(h))
        return self.head(self.nf(h).mean(1))


model = Reader().to(DTYPE)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5, betas=(0.9, 0.99), weight_decay=0.0)
losses = []
for i in range(250):
    x, y = documents(16)
    loss = F.cross_entropy(model(x).float(), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if i % 25 == 0 or i == 249:
        print(f"it={i} loss={sum(losses[-10:]) / len(losses[-10:]):.4f}")
