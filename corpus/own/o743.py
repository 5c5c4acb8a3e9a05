import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
TOK = {c: i for i, c in enumerate("0123456789+=?.")}
IGN = -100


def sample(n):
    a, b = torch.randint(0, 30, (n,)), torch.randint(0, 30, (n,))
    x, y = [], []
    for i, j in zip(a.tolist(), b.tolist()):
        q, ans = f"{i:02d}+{j:02d}=", f"{i + j:02d}."
        s = [TOK[c] for c in q + ans]
        x.append(s[:-1])
        y.append([IGN] * (len(q) - 1) + s[len(q):])
    return torch.tensor(x), torch.tensor(y)


PREFIX, TOTAL = 6, 8
allowed = torch.ones(TOTAL, TOTAL, dtype=torch.bool).tril()
allowed[:PREFIX, :PREFIX] = True


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.gate, self.down = (nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False),
                                         nn.Linear(2 * d, d, bias=False))
        self.h = h

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, L, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=10.0)
        x = x + self.o(a.transpose(1, 2).reshape(B, L, D))
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


class PrefixLM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(len(TOK), d)
        self.p = nn.Embedding(TOTAL, d)
        self.b = nn.ModuleList(Block(d, 4) for _ in range(2))
        self.n = nn.RMSNorm(d)
        nn.init.normal_(self.e.weight, std=0.05)

    def forward(self, x):
        h = self.e(x) * 16.0 + self.p.weight
        for b in self.b:
            h = b(h)
        return self.n(h) @ self.e.weight.t()


net = PrefixLM()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
sch = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=360, pct_start=0.1)
tx, ty = sample(500)
for it in range(360):
    x, y = sample(64)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=IGN)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sch.step()
    if it % 100 == 0 or it == 359:
        with torch.no_grad():
            seq = tx[:, :PREFIX]
            for _ in range(2):
                full = F.pad(seq, (0, TOTAL - seq.size(1)), value=TOK["?"])
                seq = torch.cat([seq, net(full)[:, seq.size(1) - 1].argmax(-1, keepdim=True)], 1)
            ok = (seq[:, PREFIX:] == tx[:, PREFIX:]).all(1).float().mean()
        print(f"it {it} loss {loss.item():.4f} exact sums {ok.item():.3f}")
