import torch
import torch.nn as nn
import torch.nn.functional as F


class FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias):
        scale = q.size(-1) ** -0.5
        p = torch.softmax(q @ k.transpose(-1, -2) * scale + bias, dim=-1)
        o = p @ v
        ctx.save_for_backward(q, k, v, bias, o)
        ctx.scale = scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, bias, o = ctx.saved_tensors
        p = torch.softmax(q @ k.transpose(-1, -2) * ctx.scale + bias, dim=-1)
        dv = p.transpose(-1, -2) @ do
        dp = do @ v.transpose(-1, -2)
        ds = p * dp
        dq = ds @ k * ctx.scale
        dk = ds.transpose(-1, -2) @ q * ctx.scale
        return dq, dk, dv, None


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.norm_a, self.norm_b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.to_q, self.to_k, self.to_v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.to_o = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))

    def forward(self, x, bias):
        y = self.norm_a(x)
        q, k, v = (f(y).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        x = x + self.to_o(FusedAttention.apply(q, k, v, bias).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_b(x))


class Recall(nn.Module):
    def __init__(self, keys, values, pairs, d=64, h=2, depth=2):
        super().__init__()
        self.key = nn.Embedding(keys, d)
        self.value = nn.Embedding(values + 1, d)
        self.layers = nn.ModuleList(Layer(d, h) for _ in range(depth))
        self.final = nn.LayerNorm(d)
        self.logits = nn.Linear(d, values)
        self.blank = values

    def forward(self, ks, vs, query):
        v = torch.cat([vs, torch.full_like(query, self.blank)], 1)
        x = self.key(torch.cat([ks, query], 1)) + self.value(v)
        bias = torch.zeros(x.size(1), x.size(1))
        bias[:, ks.size(1):] = float("-inf")
        for layer in self.layers:
            x = layer(x, bias)
        return self.logits(self.final(x[:, ks.size(1):]))


def batch(n, keys, values, pairs, asks, g):
    ks = torch.rand(n, keys, generator=g).argsort(1)[:, :pairs]
    vs = torch.randint(values, (n, pairs), generator=g)
    pick = torch.randint(pairs, (n, asks), generator=g)
    return ks, vs, ks.gather(1, pick), vs.gather(1, pick)


def main():
    torch.manual_seed(96)
    g = torch.Generator().manual_seed(960)
    KEYS, VALUES, PAIRS, ASKS = 16, 16, 8, 8
    net = Recall(KEYS, VALUES, PAIRS)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.0)
    for i in range(150):
        ks, vs, query, y = batch(32, KEYS, VALUES, PAIRS, ASKS, g)
        out = net(ks, vs, query)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 20 == 0 or i == 149:
            print(f"{i} loss {loss.item():.4f} acc {(out.argmax(-1) == y).float().mean().item():.3f}")


main()
