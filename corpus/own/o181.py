import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(8)


class AdamPlain:
    def __init__(self, params, lr, b1=0.9, b2=0.999, eps=1e-8):
        self.params = [p for p in params]
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        self.t = 0

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        c1 = 1 - self.b1 ** self.t
        c2 = 1 - self.b2
        for p, m, v in zip(self.params, self.m, self.v):
            m.lerp_(p.grad, 1 - self.b1)
            v.lerp_(p.grad * p.grad, 1 - self.b2)
            p -= self.lr * (m / c1) / ((v / c2).sqrt() + self.eps)


class Seq2Seq(nn.Module):
    def __init__(self, vocab=28, width=64, length=10):
        super().__init__()
        self.src = nn.Embedding(vocab, width)
        self.tgt = nn.Embedding(vocab, width)
        self.ps = nn.Parameter(torch.randn(length, width) * 0.5)
        self.pt = nn.Parameter(torch.randn(length, width) * 0.5)
        self.tr = nn.Transformer(width, 4, 1, 1, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, vocab)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, s, t):
        return self.head(self.tr(self.src(s) + self.ps, self.tgt(t) + self.pt, tgt_mask=self.mask))


def sample(n, length=10):
    s = torch.randint(2, 28, (n, length))
    y = s.flip(1)
    t = torch.cat([torch.ones(n, 1, dtype=torch.long), y[:, :-1]], 1)
    return s, t, y


model = Seq2Seq()
opt = AdamPlain(model.parameters(), lr=2e-3)
for n in range(250):
    s, t, y = sample(32)
    z = model(s, t)
    loss = F.cross_entropy(z.transpose(1, 2), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if n % 25 == 0 or n == 249:
        print("update", n, "nll", round(loss.item(), 4), "acc", round((z.argmax(-1) == y).float().mean().item(), 3))
