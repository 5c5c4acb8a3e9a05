import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(44)
VOCAB, CTX, DIM, LOOPS = 40, 32, 72, 4


class Lion:
    def __init__(self, params, lr, beta1=0.9, beta2=0.99, wd=0.1):
        self.params = [p for p in params]
        self.lr, self.b1, self.b2, self.wd = lr, beta1, beta2, wd
        self.m = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, scale):
        for p, m in zip(self.params, self.m):
            g = p.grad
            update = (m * self.b1 + g * (1 - self.b1)).sign()
            if p.dim() > 1:
                p.mul_(1 - self.lr * scale * self.wd)
            p.add_(update, alpha=-self.lr * scale)
            m.mul_(self.b2).add_(g, alpha=1 - self.b2)
            p.grad = None


class SharedBlock(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.o = nn.Linear(DIM, DIM)
        self.fc = nn.Linear(DIM, 3 * DIM)
        self.fo = nn.Linear(3 * DIM, DIM)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).unbind(2)
        s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(d // self.heads) + bias
        y = torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.fo(F.relu(self.fc(self.n2(x))).square())


class LoopedLM(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.depth = nn.Parameter(torch.zeros(LOOPS, DIM))
        self.block = SharedBlock(heads)
        self.norm = nn.LayerNorm(DIM)
        nn.init.normal_(self.emb.weight, std=DIM ** -0.5)
        slopes = torch.tensor([2.0 ** -(2 * i) for i in range(heads)])
        dist = torch.arange(CTX)[:, None] - torch.arange(CTX)[None, :]
        bias = -slopes[:, None, None] * dist.clamp(min=0)
        self.register_buffer("bias", bias.masked_fill(dist < 0, float("-inf")))

    def forward(self, ids):
        t = ids.size(1)
        x = self.emb(ids) * math.sqrt(DIM)
        for i in range(LOOPS):
            x = self.block(x + self.depth[i], self.bias[:, :t, :t])
        return self.norm(x) @ self.emb.weight.t()


succ = torch.randint(0, VOCAB, (VOCAB, 3))


def batch(n):
    x = torch.randint(0, VOCAB, (n, CTX + 1))
    for t in range(1, CTX + 1):
        pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), n, replacement=True)
        x[:, t] = succ[x[:, t - 1], pick]
    return x


model = LoopedLM()
opt = Lion(model.parameters(), lr=5e-4)
held = batch(200)
STEPS = 220
for step in range(STEPS):
    x = batch(16)
    loss = F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:])
    loss.backward()
    opt.step(min(1, (step + 1) / 20) * (0.05 + 0.95 * (1 - step / STEPS)))
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step} loss {loss.item():.4f}")
with torch.no_grad():
    print(f"held-out loss {F.cross_entropy(model(held[:, :-1]).transpose(1, 2), held[:, 1:]).item():.4f} "
          f"source entropy {-(0.7 * math.log(0.7) + 0.2 * math.log(0.2) + 0.1 * math.log(0.1)):.4f}")
