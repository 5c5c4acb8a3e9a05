import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1.0 / math.sqrt(q.shape[-1])
        T = q.shape[-2]
        s = (q @ k.transpose(-2, -1)) * scale
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), float("-inf"))
        p = torch.softmax(s, dim=-1)
        ctx.save_for_backward(q, k, v, p)
        ctx.scale = scale
        return p @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v, p = ctx.saved_tensors
        dv = p.transpose(-2, -1) @ do
        dp = do @ v.transpose(-2, -1)
        ds = p * (dp - p * dp.sum(-1, keepdim=True))
        ds = ds * ctx.scale
        return ds @ k, ds.transpose(-2, -1) @ q, dv


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        o = FusedAttention.apply(q, k, v)
        x = x + self.proj(o.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))


class Repeater(nn.Module):
    def __init__(self, vocab, T, d=64, h=4, n=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(T, d)
        self.blocks = nn.Sequential(*[Block(d, h) for _ in range(n)])
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab)

    def forward(self, x):
        return self.head(self.ln(self.blocks(self.tok(x) + self.pos.weight[: x.shape[1]])))


def make_batch(n, half, vocab):
    a = torch.randint(1, vocab, (n, half))
    seq = torch.cat([a, torch.zeros(n, 1, dtype=torch.long), a], dim=1)
    return seq[:, :-1], seq[:, 1:]


torch.manual_seed(11)
VOCAB, HALF, STEPS = 16, 12, 260
net = Repeater(VOCAB, 2 * HALF + 1)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
for step in range(STEPS):
    x, y = make_batch(32, HALF, VOCAB)
    logits = net(x)
    loss = F.cross_entropy(logits[:, HALF:].flatten(0, 1), y[:, HALF:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == STEPS - 1:
        acc = (logits[:, HALF:].argmax(-1) == y[:, HALF:]).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} acc {acc:.3f}")
