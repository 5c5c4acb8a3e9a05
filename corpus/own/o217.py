import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x[..., 0::2], x[..., 1::2]
        out = torch.empty_like(x)
        out[..., 0::2] = a * cos - b * sin
        out[..., 1::2] = a * sin + b * cos
        return out

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        a, b = grad[..., 0::2], grad[..., 1::2]
        dx = torch.empty_like(grad)
        dx[..., 0::2] = a * cos - b * sin
        dx[..., 1::2] = a * sin + b * cos
        return dx, None, None


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        qkv = self.to_qkv(x).unflatten(-1, (3, self.heads, self.size)).permute(2, 0, 3, 1, 4)
        q, k = RotaryFunction.apply(qkv[0], cos, sin), RotaryFunction.apply(qkv[1], cos, sin)
        y = F.scaled_dot_product_attention(q, k, qkv[2], is_causal=True)
        return self.to_out(y.transpose(1, 2).flatten(2))


class Recaller(nn.Module):
    def __init__(self, vocab, width=64, heads=2, depth=2, longest=128):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.attn = nn.ModuleList(SelfAttention(width, heads) for _ in range(depth))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth))
        self.ln = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.final = nn.LayerNorm(width)
        inv = 1000.0 ** (-torch.arange(0, width // heads, 2) / (width // heads))
        angle = torch.arange(longest)[:, None] * inv
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = self.table(ids)
        for i, (attn, mlp) in enumerate(zip(self.attn, self.mlp)):
            x = x + attn(self.ln[2 * i](x), self.cos[:t], self.sin[:t])
            x = x + mlp(self.ln[2 * i + 1](x))
        return self.final(x) @ self.table.weight.T


def lagged(n, length=40, vocab=24, lag=9):
    s = torch.randint(vocab, (n, length + 1))
    for t in range(lag, length + 1):
        keep = torch.rand(n) < 0.9
        s[:, t] = torch.where(keep, s[:, t - lag], s[:, t])
    return s


def main():
    torch.manual_seed(101)
    model = Recaller(24)
    nn.init.normal_(model.table.weight, std=0.1)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
    for step in range(220):
        s = lagged(24)
        logits = model(s[:, :-1])
        loss = F.cross_entropy(logits[:, 9:].transpose(1, 2), s[:, 10:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == 219:
            print(f"step={step} loss={loss.item():.4f}")


main()
