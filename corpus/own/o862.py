import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
WORDS, TAGS, MAXLEN = 120, 9, 20
word_class = torch.randint(0, TAGS, (WORDS,))


def sentences(n):
    x = torch.randint(0, WORDS, (n, MAXLEN))
    left = F.pad(word_class[x][:, :-1], (1, 0))
    y = torch.where(word_class[x] % 3 == 0, left, (word_class[x] + left) % TAGS)
    return x, y


def rope(x, base=1000.0):
    half = x.shape[-1] // 2
    freq = base ** (-torch.arange(half) / half)
    ang = torch.arange(x.shape[1])[:, None] * freq
    cos, sin = ang.cos()[None, :, None], ang.sin()[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class EncoderLayer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq = nn.Linear(d, d)
        self.wk = nn.Linear(d, d)
        self.wv = nn.Linear(d, d)
        self.wo = nn.Linear(d, d)
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.fc = nn.Sequential(nn.Linear(d, 3 * d), nn.ReLU(), nn.Linear(3 * d, d))

    def forward(self, x):
        n, t, d = x.shape
        z = self.norm1(x)
        q = self.wq(z).view(n, t, self.h, -1)
        k = self.wk(z).view(n, t, self.h, -1)
        v = self.wv(z).view(n, t, self.h, -1)
        q, k = rope(q), rope(k)
        q, k, v = (m.transpose(1, 2) for m in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.wo(o.reshape(n, t, d))
        return x + self.fc(self.norm2(x))


class Tagger(nn.Module):
    def __init__(self, d=64, h=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(WORDS, d)
        self.layers = nn.ModuleList([EncoderLayer(d, h) for _ in range(layers)])
        self.cls = nn.Linear(d, TAGS)

    def forward(self, x):
        x = self.emb(x)
        for l in self.layers:
            x = l(x)
        return self.cls(x)


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
running = 0.0
for step in range(1, 361):
    x, y = sentences(32)
    loss = F.cross_entropy(model(x).view(-1, TAGS), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.item()
    if step % 40 == 0:
        print("step", step, "avg loss", round(running / 40, 4))
        running = 0.0

model.eval()
with torch.no_grad():
    x, y = sentences(500)
    print("test tag accuracy:", round((model(x).argmax(-1) == y).float().mean().item(), 4))
