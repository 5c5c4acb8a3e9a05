import torch
from torch import nn, einsum
import torch.nn.functional as F


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x):
        return self.fn(self.norm(x)) + x


class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.dim_head = heads, dim_head
        self.scale = dim_head ** -0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.heads, self.dim_head)
        k, v = self.to_kv(x).view(b, n, 2, self.heads, self.dim_head).unbind(2)
        sim = einsum("b i h d, b j h d -> b i j h", q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = einsum("b i j h, b j h d -> b i h d", attn, v)
        return self.to_out(out.reshape(b, n, -1))


class Recall(nn.Module):
    def __init__(self, keys, values, pairs, dim=64, depth=2):
        super().__init__()
        self.key = nn.Embedding(keys, dim)
        self.value = nn.Embedding(values + 1, dim)
        self.layers = nn.Sequential(*[
            nn.Sequential(
                PreNorm(dim, Attention(dim, 4, 16)),
                PreNorm(dim, nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))))
            for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, values))

    def forward(self, k, v):
        return self.out(self.layers(self.key(k) + self.value(v)))


KEYS, VALUES, PAIRS, ASK = 40, 16, 32, 8
torch.manual_seed(2)
model = Recall(KEYS, VALUES, PAIRS)
optim = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
sched = torch.optim.lr_scheduler.LambdaLR(optim, lambda s: min(1.0, (s + 1) / 20))


def draw(n):
    k = torch.stack([torch.randperm(KEYS)[:PAIRS] for _ in range(n)])
    v = torch.randint(VALUES, (n, PAIRS))
    ask = torch.stack([torch.randperm(PAIRS)[:ASK] for _ in range(n)])
    keys = torch.cat([k, k.gather(1, ask)], 1)
    vals = torch.cat([v, torch.full((n, ASK), VALUES)], 1)
    return keys, vals, v.gather(1, ask)


for step in range(160):
    keys, vals, answer = draw(24)
    logits = model(keys, vals)[:, PAIRS:]
    loss = F.cross_entropy(logits.transpose(1, 2), answer)
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()
    sched.step()
    if step % 20 == 0 or step == 159:
        print(f"{step:4d} loss={loss.item():.4f} acc={(logits.argmax(-1) == answer).float().mean():.3f}")
