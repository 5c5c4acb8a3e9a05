import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

"""Direct preference optimisation with a tiny GRU policy.

1. supervised stage on a 50:50 mixture of ascending and descending digit runs,
2. DPO: ascending preferred.  Loss starts at exactly log 2 because policy == reference."""

torch.manual_seed(37)
V, L, BOS = 10, 8, 10


def runs(n, up):
    start = torch.randint(0, V, (n, 1))
    step = torch.arange(L)[None] * (1 if up else -1)
    seq = (start + step) % V
    noise = torch.rand(n, L) < 0.08
    return torch.where(noise, torch.randint(0, V, (n, L)), seq)


class LM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.e = nn.Embedding(V + 1, d)
        self.r = nn.GRU(d, d, batch_first=True)
        self.o = nn.Linear(d, V)

    def forward(self, seq):
        inp = torch.cat([torch.full((len(seq), 1), BOS), seq[:, :-1]], 1)
        h, _ = self.r(self.e(inp))
        return self.o(h)

    def logp(self, seq):
        """sum over the completion; the first digit is the prompt and does not count"""
        lp = self(seq).log_softmax(-1).gather(-1, seq[..., None]).squeeze(-1)
        return lp[:, 1:].sum(1)


@torch.no_grad()
def up_rate(model, n=256):
    seq = torch.randint(0, V, (n, 1))
    for _ in range(L - 1):
        pad = torch.cat([seq, torch.zeros(n, 1, dtype=torch.long)], 1)
        p = model(pad)[:, -1].softmax(-1)
        seq = torch.cat([seq, torch.multinomial(p, 1)], 1)
    d = (seq[:, 1:] - seq[:, :-1]) % V
    return (d == 1).float().mean().item()


policy = LM()
opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
for s in range(200):
    x = torch.cat([runs(32, True), runs(32, False)])
    loss = F.cross_entropy(policy(x).flatten(0, 1), x.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 25 == 0 or s == 199:
        print(f"[sft] step {s:3d} loss {loss.item():.4f} up-rate {up_rate(policy):.3f}")

ref = copy.deepcopy(policy).eval().requires_grad_(False)
beta = 0.1
opt = torch.optim.RMSprop(policy.parameters(), lr=3e-4)
for s in range(121):
    first = torch.randint(0, V, (48, 1))
    w, l = runs(48, True), runs(48, False)
    shift = first - w[:, :1]
    w = (w + shift) % V
    l = (l + first - l[:, :1]) % V
    with torch.no_grad():
        rw, rl = ref.logp(w), ref.logp(l)
    pw, pl = policy.logp(w), policy.logp(l)
    margin = beta * ((pw - rw) - (pl - rl))
    loss = -F.logsigmoid(margin).mean()
    if s % 10 == 0:
        print(f"[dpo] step {s:3d} loss {loss.item():.4f} reward acc {(margin > 0).float().mean().item():.3f} "
              f"chosen logp {pw.mean().item():.2f} rejected logp {pl.mean().item():.2f} up-rate {up_rate(policy):.3f}")
    opt.zero_grad()
    loss.backward()
    opt.step()
