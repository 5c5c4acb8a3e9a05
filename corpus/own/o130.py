import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(61)

SYMBOLS, HALF, D = 26, 9, 48
MASK = SYMBOLS


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(D, D, bias=False)
        self.k_proj = nn.Linear(D, D, bias=False)
        self.v_proj = nn.Linear(D, D, bias=False)
        self.o_proj = nn.Linear(D, D, bias=False)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attn = Attention(heads)
        self.ff_in = nn.Linear(D, 2 * D, bias=False)
        self.ff_out = nn.Linear(2 * D, D, bias=False)
        self.norm_a = nn.LayerNorm(D)
        self.norm_f = nn.LayerNorm(D)

    def forward(self, x):
        x = x + self.attn(self.norm_a(x))
        return x + self.ff_out(F.gelu(self.ff_in(self.norm_f(x))))


class Mirror(nn.Module):
    def __init__(self, depth=3, heads=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(heads) for _ in range(depth))
        self.embed = nn.Embedding(SYMBOLS + 1, D)
        self.head = nn.Linear(D, SYMBOLS, bias=False)
        self.norm = nn.LayerNorm(D)
        self.pos = nn.Embedding(2 * HALF, D)

    def forward(self, x):
        h = self.embed(x) + self.pos.weight
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))


class MicroBatcher:
    def __init__(self, model, pieces):
        self.model, self.pieces = model, pieces
        self.names = sorted(n for n, p in model.named_parameters() if p.requires_grad)
        self.lookup = dict(model.named_parameters())

    def run(self, x, y):
        total, value = None, 0.0
        for xs, ys in zip(x.chunk(self.pieces), y.chunk(self.pieces)):
            loss = F.cross_entropy(self.model(xs).flatten(0, 1), ys.flatten(), ignore_index=-100) / self.pieces
            grads = torch.autograd.grad(loss, list(self.model.parameters()))
            total = list(grads) if total is None else [a + b for a, b in zip(total, grads)]
            value += loss.item()
        for name, g in zip(self.names, total):
            self.lookup[name].grad = g
        return value


def batch(n):
    left = torch.randint(SYMBOLS, (n, HALF))
    full = torch.cat([left, left.flip(1)], 1)
    hide = torch.rand(full.shape) < 0.2
    hide[:, HALF:] &= ~hide[:, :HALF].flip(1)
    return full.masked_fill(hide, MASK), full.masked_fill(~hide, -100)


model = Mirror()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
engine = MicroBatcher(model, pieces=2)
for step in range(200):
    value = engine.run(*batch(48))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {value:.4f}")
