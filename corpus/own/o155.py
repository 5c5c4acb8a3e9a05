import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(19)


class Gate(nn.Module):
    def __init__(self, dim, bias):
        super().__init__()
        self.lin = nn.Linear(dim, dim)
        nn.init.normal_(self.lin.weight, std=0.02)
        nn.init.constant_(self.lin.bias, bias)

    def forward(self, x, fx):
        t = torch.sigmoid(self.lin(x))
        return t * fx + (1.0 - t) * x


class HighwayLayer(nn.Module):
    def __init__(self, dim, heads, gate_bias):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.ga, self.gf = Gate(dim, gate_bias), Gate(dim, gate_bias)
        self.na, self.nf = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        a = self.na(x)
        x = self.ga(x, self.attn(a, a, a, need_weights=False)[0])
        return self.gf(x, self.ff(self.nf(x)))


class Tagger(nn.Module):
    def __init__(self, n_words, n_tags, dim=48, depth=8, gate_bias=5.0):
        super().__init__()
        self.words = nn.Embedding(n_words, dim)
        self.places = nn.Embedding(16, dim)
        self.stack = nn.Sequential(*[HighwayLayer(dim, 4, gate_bias) for _ in range(depth)])
        self.tags = nn.Linear(dim, n_tags)

    def forward(self, w):
        return self.tags(self.stack(self.words(w) + self.places.weight[: w.size(1)]))


def corpus(n_words=40, n_tags=6):
    kind = torch.randint(0, n_tags, (n_words,))

    def draw(b):
        w = torch.randint(0, n_words, (b, 16))
        k = kind[w]
        left = F.pad(k, (1, 0))[:, :-1]
        return w, torch.where(left == 0, (k + 1) % n_tags, k)

    return draw


draw = corpus()
tagger = Tagger(40, 6)
optim = torch.optim.Adam(tagger.parameters(), lr=1e-3)
for step in range(160):
    w, t = draw(16)
    out = tagger(w)
    loss = F.cross_entropy(out.reshape(-1, 6), t.reshape(-1))
    optim.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(tagger.parameters(), 5.0)
    optim.step()
    if step % 16 == 0 or step == 159:
        print(f"step {step}: loss {loss.item():.4f}, tag acc {(out.argmax(-1) == t).float().mean().item():.3f}")
