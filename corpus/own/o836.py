import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
V, SEP, P = 28, 0, 7
L = 2 * P + 1
D, H, LAYERS, KERNEL = 64, 4, 2, 4


def make_batch(n, g):
    s = torch.randint(1, V, (n, P), generator=g)
    return torch.cat([s, torch.full((n, 1), SEP), s], dim=1)


class ShortConv(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(d, d, KERNEL, padding=KERNEL - 1, groups=d)

    def forward(self, x):
        y = self.conv(x.transpose(1, 2))[..., -x.size(1):]
        return F.silu(y.transpose(1, 2))


class Mixer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.cq, self.ck, self.cv = ShortConv(d), ShortConv(d), ShortConv(d)
        self.o = nn.Linear(d, d, bias=False)
        self.register_buffer("tri", torch.ones(64, 64).tril().bool())

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.cq(self.q(x)), self.ck(self.k(x)), self.cv(self.v(x))
        split = lambda z: z.view(b, t, H, d // H)
        w = torch.einsum("bihd,bjhd->bhij", split(q), split(k)) / math.sqrt(d // H)
        w = w.masked_fill(~self.tri[:t, :t], float("-inf")).softmax(-1)
        return self.o(torch.einsum("bhij,bjhd->bihd", w, split(v)).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = Mixer(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        return x + self.mlp(self.n2(x))


class HybridLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(V, D)
        self.wpe = nn.Parameter(torch.randn(64, D) * 0.02)
        self.layers = nn.ModuleList(Layer(D) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe[: idx.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))

    @torch.no_grad()
    def complete(self, idx, n):
        for _ in range(n):
            idx = torch.cat([idx, self(idx)[:, -1:].argmax(-1)], 1)
        return idx


def main():
    g = torch.Generator().manual_seed(8)
    net = HybridLM()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95))
    for it in range(300):
        ids = make_batch(48, g)
        loss = F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        if it % 25 == 0:
            print(f"iter {it} loss {loss.item():.4f}")
    net.eval()
    test = make_batch(200, g)
    done = net.complete(test[:, : P + 1], P)
    print(f"generated copies: token accuracy {(done[:, P + 1:] == test[:, P + 1:]).float().mean().item():.3f}")


main()
