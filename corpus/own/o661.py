import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(41)

N, BASE = 7, 12
GO = BASE
VOCAB = BASE + 1
PREFIX = N + 1
TOTAL = PREFIX + N - 1


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - g["lr"] * g["weight_decay"])
                p.add_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=-g["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def prefix_mask():
    allowed = torch.ones(TOTAL, TOTAL).tril().bool()
    allowed[:, :PREFIX] = True
    return allowed


class IteratedTransformer(nn.Module):
    def __init__(self, d=64, heads=4, loops=3):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(TOTAL, d)
        self.depth = nn.Embedding(loops, d)
        self.loops, self.heads = loops, heads
        self.n1, self.n2, self.nf = (nn.LayerNorm(d) for _ in range(3))
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.ReLU(), nn.Linear(3 * d, d))
        self.head = nn.Linear(d, VOCAB)
        self.register_buffer("allowed", prefix_mask())

    def block(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=self.allowed[:T, :T])
        x = x + self.o(a.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.n2(x))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        for i in range(self.loops):
            x = self.block(x + self.depth.weight[i])
        return self.head(self.nf(x))


def batch(n):
    items = torch.randint(0, BASE, (n, N))
    answer = items.sort(1).values
    seq = torch.cat([items, torch.full((n, 1), GO), answer], 1)
    return seq[:, :-1], answer


model = IteratedTransformer()
opt = Lion(model.parameters(), lr=5e-4, weight_decay=0.1)
STEPS = 300
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 15, 2 * (STEPS - s) / STEPS))
for step in range(1, STEPS + 1):
    x, answer = batch(32)
    logits = model(x)[:, PREFIX - 1:]
    loss = F.cross_entropy(logits.transpose(1, 2), answer)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(f"step {step:3d} loss {loss.item():.4f}")


@torch.no_grad()
def decode(items):
    seq = torch.cat([items, torch.full((len(items), 1), GO)], 1)
    for _ in range(N):
        seq = torch.cat([seq, model(seq)[:, -1:].argmax(-1)], 1)
    return seq[:, PREFIX:]


items = torch.randint(0, BASE, (200, N))
hit = decode(items) == items.sort(1).values
print(f"digits right {hit.float().mean():.3f} lists right {hit.all(1).float().mean():.3f}")
