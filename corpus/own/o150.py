import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(55)


class LowRankLinear(nn.Module):
    def __init__(self, d_in, d_out, rank):
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, d_in))
        self.up = nn.Parameter(torch.empty(d_out, rank))
        self.bias = nn.Parameter(torch.zeros(d_out))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.down)
        nn.init.zeros_(self.up)

    def forward(self, x):
        return F.linear(F.linear(x, self.down), self.up, self.bias)


class Layer(nn.Module):
    def __init__(self, d, h, r):
        super().__init__()
        self.h = h
        self.ln_a, self.ln_b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k = nn.Linear(d, d), nn.Linear(d, d)
        self.v = nn.Linear(d, d)
        self.o = LowRankLinear(d, d, r)
        self.f1 = nn.Linear(d, 2 * d)
        self.f2 = LowRankLinear(2 * d, d, r)

    def heads(self, t):
        return t.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x):
        y = self.ln_a(x)
        a = F.scaled_dot_product_attention(self.heads(self.q(y)), self.heads(self.k(y)), self.heads(self.v(y)), is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.ln_b(x))))


class Tiny(nn.Module):
    def __init__(self, v, t, d=64, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(v, d), nn.Embedding(t, d)
        self.layers = nn.ModuleList([Layer(d, 4, 16) for _ in range(depth)])
        self.ln, self.fc = nn.LayerNorm(d), nn.Linear(d, v)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        for l in self.layers:
            h = l(h)
        return self.fc(self.ln(h))


K, T = 11, 25
jump = torch.randint(0, K, (K, K))


def walk(n):
    s = [torch.randint(0, K, (n,)), torch.randint(0, K, (n,))]
    while len(s) < T + 1:
        s.append(jump[s[-2], s[-1]])
    s = torch.stack(s, 1)
    return s[:, :-1], s[:, 1:]


net = Tiny(K, T)
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0)
for it in range(200):
    x, y = walk(24)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 20 == 0 or it == 199:
        print(f"t={it:03d} ce={loss.item():.4f}")
