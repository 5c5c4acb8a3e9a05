import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)
AA, LEN, CODES = 20, 40, 32
g = torch.Generator().manual_seed(24)
motifs = torch.randint(0, AA, (16, 8), generator=g)


def chains(n):
    pick = torch.randint(0, 16, (n, LEN // 8), generator=g)
    s = motifs[pick].flatten(1)
    noise = torch.rand(s.shape, generator=g) < 0.08
    return torch.where(noise, torch.randint(0, AA, s.shape, generator=g), s)


class Snap(torch.autograd.Function):

    @staticmethod
    def forward(ctx, z, book):
        near = torch.cdist(z.flatten(0, -2), book).argmin(-1).view(z.shape[:-1])
        ctx.mark_non_differentiable(near)
        return book[near], near

    @staticmethod
    def backward(ctx, grad, _):
        return grad, None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.1 * grad


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        q, k, v = (u.unflatten(-1, (4, -1)).transpose(1, 2) for u in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class ProteinVQ(nn.Module):
    def __init__(self, d=56, c=12):
        super().__init__()
        self.emb = nn.Embedding(AA, d)
        self.pos = nn.Parameter(0.2 * torch.randn(LEN, d))
        self.enc = Block(d)
        self.squeeze = nn.Conv1d(d, c, 4, stride=4)
        self.register_buffer("book", torch.randn(CODES, c) * 0.5)
        self.register_buffer("mass", torch.ones(CODES))
        self.register_buffer("total", self.book.clone())
        self.spread = nn.ConvTranspose1d(c, d, 4, stride=4)
        self.dec = nn.Sequential(Block(d), nn.LayerNorm(d), nn.Linear(d, AA))
        self.critic = nn.Linear(c, LEN // 4)

    @torch.no_grad()
    def refresh(self, z, near, keep=0.9):
        hot = F.one_hot(near.flatten(), CODES).float()
        self.mass.lerp_(hot.sum(0), 1 - keep)
        self.total.lerp_(hot.T @ z.flatten(0, 1), 1 - keep)
        self.book.copy_(self.total / (self.mass[:, None] + 1e-3))
        idle = self.mass < 0.3
        if idle.any():
            pool = z.flatten(0, 1)[torch.randint(0, z.shape[0] * z.shape[1], (int(idle.sum()),))]
            self.book[idle], self.total[idle], self.mass[idle] = pool, pool, 1.0

    def forward(self, s):
        z = self.squeeze(self.enc(self.emb(s) + self.pos).transpose(1, 2)).transpose(1, 2)
        q, near = Snap.apply(z, self.book)
        commit = F.mse_loss(z, q.detach())
        slot = torch.arange(LEN // 4).expand(len(s), -1)
        leak = F.cross_entropy(self.critic(Reverse.apply(z)).flatten(0, 1), slot.flatten())
        out = self.dec(self.spread(q.transpose(1, 2)).transpose(1, 2) + self.pos)
        rec = F.cross_entropy(out.flatten(0, 1), s.flatten())
        if self.training:
            self.refresh(z.detach(), near)
        return rec, commit, leak


net = ProteinVQ()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
N = 300
for step in range(N):
    opt.param_groups[0]["lr"] = 2e-3 * min(1, (step + 1) / 15) * 0.5 * (1.1 + math.cos(math.pi * step / N))
    rec, commit, leak = net(chains(40))
    loss = rec + 0.25 * commit + 0.2 * leak
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == N - 1:
        print(f"step {step:3d} loss {loss.item():.3f} rec {rec.item():.3f} commit {commit.item():.3f} slot {leak.item():.3f}")
