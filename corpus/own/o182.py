import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(404)

args = dict(n_embd=64, ctx=40, bsz=16, layers=2, lr=3e-3, iters=170)
blob = " ".join(" ".join(topics[k].split()) for k in sorted(topics))[:200000]
vocab = sorted(set(blob))
lut = {c: i for i, c in enumerate(vocab)}
tokens = torch.tensor([lut[c] for c in blob])
split = int(0.95 * len(tokens))


class TimeMix(nn.Module):
    def __init__(self, C, T):
        super().__init__()
        self.time_shift = nn.ZeroPad2d((0, 0, -1, 1))
        self.mix_k = nn.Parameter(torch.full((C,), 0.5))
        self.mix_v = nn.Parameter(torch.full((C,), 0.5))
        self.mix_r = nn.Parameter(torch.full((C,), 0.5))
        self.decay = nn.Parameter(torch.linspace(-3, 1.5, C))
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.receptance = nn.Linear(C, C, bias=False)
        self.output = nn.Linear(C, C, bias=False)
        t = torch.arange(T)
        self.register_buffer("gap", (t[:, None] - t[None, :]).clamp(min=0).float())
        self.register_buffer("past", (t[:, None] >= t[None, :]).float())

    def forward(self, x):
        xx = self.time_shift(x)
        k = self.key(xx + (x - xx) * self.mix_k).clamp(max=20)
        v = self.value(xx + (x - xx) * self.mix_v)
        r = torch.sigmoid(self.receptance(xx + (x - xx) * self.mix_r))
        w = torch.exp(-self.gap[:, :, None] * F.softplus(self.decay)) * self.past[:, :, None]
        e = torch.exp(k)
        num = torch.einsum("tsc,bsc->btc", w, e * v)
        den = torch.einsum("tsc,bsc->btc", w, e)
        return self.output(r * num / (den + 1e-6))


class ChannelMix(nn.Module):
    def __init__(self, C):
        super().__init__()
        self.key = nn.Linear(C, 3 * C, bias=False)
        self.value = nn.Linear(3 * C, C, bias=False)

    def forward(self, x):
        return self.value(torch.relu(self.key(x)).square())


class RWKV(nn.Module):
    def __init__(self, V, C, T, L):
        super().__init__()
        self.emb = nn.Embedding(V, C)
        self.att = nn.ModuleList([TimeMix(C, T) for _ in range(L)])
        self.ffn = nn.ModuleList([ChannelMix(C) for _ in range(L)])
        self.ln = nn.ModuleList([nn.LayerNorm(C) for _ in range(2 * L + 1)])
        self.head = nn.Linear(C, V, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        for i, (a, f) in enumerate(zip(self.att, self.ffn)):
            x = x + a(self.ln[2 * i](x))
            x = x + f(self.ln[2 * i + 1](x))
        return self.head(self.ln[-1](x))


def get_batch(lo, hi):
    j = torch.randint(lo, hi - args["ctx"] - 1, (args["bsz"],))[:, None] + torch.arange(args["ctx"] + 1)
    return tokens[j][:, :-1], tokens[j][:, 1:]


model = RWKV(len(vocab), args["n_embd"], args["ctx"], args["layers"])
opt = torch.optim.Adam(model.parameters(), lr=args["lr"], betas=(0.9, 0.99))
for it in range(args["iters"]):
    x, y = get_batch(0, split)
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 17 == 0 or it == args["iters"] - 1:
        with torch.no_grad():
            x, y = get_batch(split, len(tokens))
            val = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        print(f"{it} train {loss.item():.4f} val {val.item():.4f}")
