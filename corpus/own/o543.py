import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(101)
VOCAB, T, D, H, LAYERS = 24, 32, 64, 4, 2
PRE_STEPS, LORA_STEPS, BATCH = 180, 160, 20


class MarkovLanguage:

    def __init__(self, logits):
        self.p = logits.softmax(-1)

    @classmethod
    def random(cls, g):
        return cls(torch.randn(VOCAB, VOCAB, generator=g) * 2.0)

    def related(self, g, share=0.5):
        new = torch.randn(VOCAB, VOCAB, generator=g) * 2.0
        keep = torch.rand(VOCAB, 1, generator=g) < share
        return MarkovLanguage(torch.where(keep, self.p.log(), new))

    def sample(self, n, g=None):
        x = torch.randint(VOCAB, (n,), generator=g)
        out = [x]
        for _ in range(T):
            x = torch.multinomial(self.p[x], 1, generator=g).squeeze(1)
            out.append(x)
        return torch.stack(out, 1)

    def entropy_rate(self):
        pi = torch.full((VOCAB,), 1 / VOCAB)
        for _ in range(200):
            pi = pi @ self.p
        return -(pi[:, None] * self.p * self.p.log()).sum().item()


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.t() @ self.B.t()) * self.scale

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.scale * self.B @ self.A
        return self.base


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D)
        x = x + self.proj(a)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def nll(model, seq):
    return F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())


def fit(model, params, language, steps, lr, tag, val):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        loss = nll(model, language.sample(BATCH))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0 or step == steps - 1:
            with torch.no_grad():
                print(f"[{tag}] step {step:3d} loss {loss.item():.4f} val {nll(model, val).item():.4f}")


g = torch.Generator().manual_seed(55)
lang_a = MarkovLanguage.random(g)
lang_b = lang_a.related(g)
val_a, val_b = lang_a.sample(64, g), lang_b.sample(64, g)
print(f"entropy rates: A {lang_a.entropy_rate():.3f}  B {lang_b.entropy_rate():.3f}")

model = LM()
fit(model, list(model.parameters()), lang_a, PRE_STEPS, 3e-3, "pretrain A", val_a)

model.requires_grad_(False)
for blk in model.blocks:
    for name in ("qkv", "proj", "up", "down"):
        setattr(blk, name, LoRALinear(getattr(blk, name)))
lora = [p for p in model.parameters() if p.requires_grad]
total = sum(p.numel() for p in model.parameters())
print(f"trainable {sum(p.numel() for p in lora)} of {total} parameters")
frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
fit(model, lora, lang_b, LORA_STEPS, 5e-3, "lora B", val_b)
assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)

with torch.no_grad():
    before = nll(model, val_b)
    for blk in model.blocks:
        for name in ("qkv", "proj", "up", "down"):
            setattr(blk, name, getattr(blk, name).merge())
    after = nll(model, val_b)
print(f"val B before merging {before.item():.4f}, after merging {after.item():.4f}")
