import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics


class SelectiveScan(nn.Module):
    def __init__(self, d, n=8):
        super().__init__()
        self.a_log = nn.Parameter(torch.log(torch.arange(1, n + 1).float()).repeat(d, 1))
        self.to_dt = nn.Linear(d, d)
        nn.init.constant_(self.to_dt.bias, -3.0)
        self.to_bc = nn.Linear(d, 2 * n, bias=False)
        self.skip = nn.Parameter(torch.ones(d))
        self.n = n

    def forward(self, x):
        b, t, d = x.shape
        dt = F.softplus(self.to_dt(x))
        B, C = self.to_bc(x).chunk(2, -1)
        A = torch.exp(self.a_log)
        decay = torch.exp(dt[..., None] * A)
        drive = (dt * x)[..., None] * B[:, :, None]
        h = x.new_zeros(b, d, self.n)
        ys = []
        for i in range(t):
            h = decay[:, i] * h + drive[:, i]
            ys.append((h * C[:, i, None]).sum(-1))
        return torch.stack(ys, 1) + self.skip * x


class MambaBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.inp = nn.Linear(d, 2 * d)
        self.scan = SelectiveScan(d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        u, gate = self.inp(self.norm(x)).chunk(2, -1)
        return x + self.out(self.scan(F.silu(u)) * F.silu(gate))


class CharMamba(nn.Module):
    def __init__(self, vocab, d=48, depth=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.Sequential(*[MambaBlock(d) for _ in range(depth)])
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.blocks(self.emb(ids)))


def run(steps=120, ctx=40, batch=8):
    torch.manual_seed(120)
    text = " ".join(topics[k] for k in sorted(topics))[:200000]
    vocab = sorted(set(text))
    ids = torch.tensor([vocab.index(c) for c in text])
    model = CharMamba(len(vocab))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        at = torch.randint(len(ids) - ctx - 1, (batch, 1))
        rows = ids[at + torch.arange(ctx + 1)]
        loss = F.cross_entropy(model(rows[:, :-1]).transpose(1, 2), rows[:, 1:])
        opt.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        opt.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f} grad {norm.item():.3g}")


run()
