import contextlib
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(29)
VOCAB, PL, CL, D = 24, 6, 6, 64


class LoRALinear(nn.Module):
    def __init__(self, i, o, r=8, alpha=16):
        super().__init__()
        self.base = nn.Linear(i, o)
        self.A = nn.Parameter(torch.randn(r, i) * i ** -0.5)
        self.B = nn.Parameter(torch.zeros(o, r))
        self.scale, self.on = alpha / r, True

    def forward(self, x):
        y = self.base(x)
        return y + self.scale * (x @ self.A.t() @ self.B.t()) if self.on else y


class Layer(nn.Module):
    def __init__(self, d=D, h=4):
        super().__init__()
        self.h = h
        self.a, self.b = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = LoRALinear(d, 3 * d), LoRALinear(d, d)
        self.up, self.down = LoRALinear(d, 3 * d), LoRALinear(3 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.a(x)).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.b(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(PL + CL, D)
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.layers(self.tok(ids) + self.pos.weight[: ids.size(1)])))

    @contextlib.contextmanager
    def adapters_off(self):
        mods = [m for m in self.modules() if isinstance(m, LoRALinear)]
        for m in mods:
            m.on = False
        yield
        for m in mods:
            m.on = True

    def logp(self, ids):
        lp = self(ids[:, :-1]).log_softmax(-1)[:, PL - 1:]
        return lp.gather(-1, ids[:, PL:, None]).squeeze(-1).sum(-1)


def polite(p):
    return (p + 1) % 12


def terse(p):
    return 12 + (p + 5) % 12


def pairs(n):
    p = torch.randint(0, 12, (n, PL))
    return torch.cat([p, polite(p)], 1), torch.cat([p, terse(p)], 1)


@torch.no_grad()
def share_polite(lm, n=128):
    ids = torch.randint(0, 12, (n, PL))
    want = polite(ids)
    for _ in range(CL):
        ids = torch.cat([ids, torch.multinomial(lm(ids)[:, -1].softmax(-1), 1)], 1)
    return (ids[:, PL:] == want).float().mean().item()


lm = LM()
opt = torch.optim.AdamW([p for n, p in lm.named_parameters() if n.split(".")[-1] not in "AB"], lr=2e-3)
for s in range(220):
    good, bad = pairs(32)
    ids = torch.where(torch.rand(32, 1) < 0.3, good, bad)
    loss = F.cross_entropy(lm(ids[:, :-1])[:, PL - 1:].flatten(0, 1), ids[:, PL:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 50 == 0:
        print(f"sft {s:3d} loss {loss.item():.4f}")

for n, p in lm.named_parameters():
    p.requires_grad_(n.split(".")[-1] in "AB")
trainable = [p for p in lm.parameters() if p.requires_grad]
print(f"polite share after sft {share_polite(lm):.3f}; adapter params {sum(p.numel() for p in trainable)}")
opt, beta = torch.optim.AdamW(trainable, lr=3e-4, weight_decay=0.0), 0.3
for s in range(120):
    good, bad = pairs(32)
    both = torch.cat([good, bad])
    with torch.no_grad(), lm.adapters_off():
        ref = lm.logp(both)
    logp = lm.logp(both)
    w, l = (logp - ref).chunk(2)
    loss = -F.logsigmoid(beta * (w - l)).mean() - 0.2 * logp[:32].mean() / CL
    opt.zero_grad()
    loss.backward()
    opt.step()
    if s % 15 == 0 or s == 119:
        print(f"dpo {s:3d} loss {loss.item():.4f} margin {beta * (w - l).mean().item():.3f} "
              f"chosen {w.mean().item():+.2f} rejected {l.mean().item():+.2f} polite {share_polite(lm):.3f}")
