import torch
import torch.nn as nn
import torch.nn.functional as F


class Router(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.gate = nn.Linear(d, n, bias=False)

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        w, i = p.topk(1, -1)
        share = F.one_hot(i.squeeze(-1), p.size(-1)).float().mean((0, 1))
        return w, i.squeeze(-1), p.size(-1) * (share * p.mean((0, 1))).sum()


class SwitchFFN(nn.Module):
    def __init__(self, d, n=4, mult=2):
        super().__init__()
        self.router = Router(d, n)
        self.w1 = nn.Parameter(torch.randn(n, d, mult * d) * d ** -0.5)
        self.w2 = nn.Parameter(torch.randn(n, mult * d, d) * (mult * d) ** -0.5)

    def forward(self, x):
        w, i, balance = self.router(x)
        y = torch.zeros_like(x)
        for e in range(len(self.w1)):
            at = i == e
            y[at] = (F.relu(x[at] @ self.w1[e]) @ self.w2[e]).to(y.dtype)
        return y * w, balance


class SwitchLM(nn.Module):
    def __init__(self, vocab, d=64, depth=2, t=31):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.zeros(t, d))
        self.att = nn.ModuleList(nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(depth))
        self.ffn = nn.ModuleList(SwitchFFN(d) for _ in range(depth))
        self.na = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.nf = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.out = nn.Linear(d, vocab)

    def forward(self, s):
        t = s.size(1)
        x, aux = self.tok(s) + self.pos[:t], 0.0
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        for a, f, n, m in zip(self.att, self.ffn, self.na, self.nf):
            h = n(x)
            x = x + a(h, h, h, attn_mask=mask, need_weights=False)[0]
            y, b = f(m(x))
            x, aux = x + y, aux + b
        return self.out(x), aux


def sums(n):
    a, b = torch.randint(0, 100, (2, n))
    rows = []
    for x, y in zip(a.tolist(), b.tolist()):
        s = f"{x:02d}+{y:02d}={str(x + y).zfill(3)[::-1]}"
        rows.append([ord(c) - 43 for c in s])
    return torch.tensor(rows)


torch.manual_seed(6)
MICRO, GROUP, UPDATES = 32, 2, 150
net = SwitchLM(20)
opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.0)
for u in range(UPDATES):
    shown = 0.0
    for part in range(GROUP):
        s = sums(MICRO)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, aux = net(s[:, :-1])
        ce = F.cross_entropy(logits[:, 5:].float().flatten(0, 1), s[:, 6:].flatten(), reduction="sum")
        loss = ce / (MICRO * 3 * GROUP) + 0.01 * aux / GROUP
        loss.backward()
        shown += ce.item() / (MICRO * 3 * GROUP)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    if u % 20 == 0 or u == UPDATES - 1:
        print(f"update {u} digit loss {shown:.4f}")
