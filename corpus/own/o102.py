import math
import torch
from torch import nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(404)


class DConv(nn.Module):
    def __init__(self, channels, width=3):
        super().__init__()
        self.width = width
        self.conv = nn.Conv1d(channels, channels, width, padding=width - 1, groups=channels)
        with torch.no_grad():
            self.conv.weight.mul_(0.3)
            self.conv.weight[:, 0, 0 if width < 2 else width - 1] += 0.7

    def forward(self, x):
        n = x.size(1)
        y = self.conv(x.transpose(1, 2))[..., -n:]
        return y.transpose(1, 2)


class PrimerAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.dq, self.dk, self.dv = DConv(dim), DConv(dim), DConv(dim)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.dq(self.q(x)), self.dk(self.k(x)), self.dv(self.v(x))
        q, k, v = (t.view(b, n, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        sim = q @ k.mT / math.sqrt(d // self.heads)
        sim = sim + torch.full((n, n), float("-inf")).triu(1)
        return self.proj((sim.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x) ** 2


class PrimerLM(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, depth=2, ctx=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.where = nn.Embedding(ctx, dim)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers.append(nn.ModuleDict({
                "ln_a": nn.LayerNorm(dim), "attn": PrimerAttention(dim, heads),
                "ln_f": nn.LayerNorm(dim), "ffn": nn.Sequential(nn.Linear(dim, 4 * dim), SquaredReLU(), nn.Linear(4 * dim, dim)),
            }))
        self.ln = nn.LayerNorm(dim)
        self.unembed = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        h = self.embed(ids) + self.where(torch.arange(ids.size(1)))
        for blk in self.layers:
            h = h + blk["attn"](blk["ln_a"](h))
            h = h + blk["ffn"](blk["ln_f"](h))
        return self.unembed(self.ln(h))


@torch.no_grad()
def complete(model, prompt, n, ctx):
    ids = prompt
    for _ in range(n):
        nxt = model(ids[:, -ctx:])[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], 1)
    return ids


corpus = "\n".join(topics[k] for k in sorted(topics))
symbols = sorted(set(corpus))
enc = {c: i for i, c in enumerate(symbols)}
stream = torch.tensor([enc[c] for c in corpus])
ctx, rows = 64, 12
model = PrimerLM(len(symbols), ctx=ctx)
opt = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.95))

for it in range(200):
    s = torch.randint(len(stream) - ctx - 1, (rows, 1))
    win = stream[s + torch.arange(ctx + 1)]
    out = model(win[:, :-1])
    loss = F.cross_entropy(out.reshape(-1, len(symbols)), win[:, 1:].reshape(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if it % 25 == 0 or it == 199:
        print(f"it {it} loss {loss.item():.4f}")

text = complete(model, stream[None, 1000:1040], 60, ctx)[0].tolist()
print(repr("".join(symbols[i] for i in text)))
