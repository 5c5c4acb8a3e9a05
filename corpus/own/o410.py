import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
gen = torch.Generator().manual_seed(770)
V, N, D, EXPERTS = 48, 24, 64, 4


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, EXPERTS, bias=False)
        self.w_in = nn.Parameter(torch.randn(EXPERTS, D, 96) * D ** -0.5)
        self.w_out = nn.Parameter(torch.zeros(EXPERTS, 96, D))

    def forward(self, x):
        flat = x.reshape(-1, D)
        p = self.router(flat).softmax(-1)
        gate, pick = p.max(-1)
        out = torch.zeros_like(flat)
        for e in range(EXPERTS):
            where = (pick == e).nonzero().squeeze(1)
            y = F.gelu(flat[where] @ self.w_in[e]) @ self.w_out[e]
            out = out.index_add(0, where, (y * gate[where, None]).to(out.dtype))
        share = F.one_hot(pick, EXPERTS).float().mean(0)
        return out.view_as(x), EXPERTS * (share * p.mean(0)).sum()


class SigmoidAttention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        nn.init.zeros_(self.out.weight)
        self.shift = nn.Parameter(torch.full((heads, 1, 1), -2.0))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = torch.sigmoid(q @ k.transpose(-2, -1) * (D // self.heads) ** -0.5 + self.shift).tril()
        return self.out((s @ v).transpose(1, 2).reshape(b, n, D))


class Net(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        nn.init.normal_(self.emb.weight, std=0.1)
        self.pos = nn.Parameter(torch.randn(N, D) * 0.1)
        self.att = nn.ModuleList(SigmoidAttention() for _ in range(depth))
        self.moe = nn.ModuleList(Experts() for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 * depth + 1))

    def forward(self, x):
        h, extra = self.emb(x) + self.pos, 0.0
        for i, (a, m) in enumerate(zip(self.att, self.moe)):
            h = h + a(self.norms[2 * i](h))
            y, aux = m(self.norms[2 * i + 1](h))
            h, extra = h + y, extra + aux
        return self.norms[-1](h) @ self.emb.weight.t() * D ** -0.5, extra


jump = torch.randint(V, (2, V), generator=gen)


def batch(n=32):
    rows = [torch.randint(V, (n,), generator=gen), torch.randint(V, (n,), generator=gen)]
    for _ in range(N - 1):
        nxt = jump[rows[-2] % 2, rows[-1]]
        rows.append(torch.where(torch.rand(n, generator=gen) < 0.1, torch.randint(V, (n,), generator=gen), nxt))
    rows = torch.stack(rows, 1)
    return rows[:, :-1], rows[:, 1:]


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.5, 0.95), eps=1e-12)
for step in range(120):
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, aux = net(x)
    loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    opt.zero_grad()
    (loss + 0.01 * aux).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    opt.step()
    if step % 12 == 0 or step == 119:
        print(f"step {step} loss {loss.item():.4f} balance {aux.item() / 2:.3f}")
