import random
from dataclasses import dataclass
import torch
from torch import nn, Tensor
import torch.nn.functional as F


@dataclass
class Cfg:
    nouns: int = 14
    adjs: int = 10
    verbs: int = 10
    d: int = 64
    heads: int = 4
    steps: int = 220
    batch: int = 40
    lr: float = 2e-3


cfg = Cfg()
random.seed(5)
torch.manual_seed(5)
PAD, BOS, EOS = 0, 1, 2
words = [f"n{i}" for i in range(cfg.nouns)] + [f"a{i}" for i in range(cfg.adjs)] + [f"v{i}" for i in range(cfg.verbs)]
src_id = {w: i + 3 for i, w in enumerate(words)}
perm = random.sample(range(len(words)), len(words))
dst_id = {w: perm[i] + 3 for i, w in enumerate(words)}
VOC = len(words) + 3


def phrase() -> list[str]:
    return [f"a{random.randrange(cfg.adjs)}" for _ in range(random.choice([0, 1, 2, 3]))] + [f"n{random.randrange(cfg.nouns)}"]


def pair() -> tuple[list[int], list[int]]:
    subj, verb, obj = phrase(), f"v{random.randrange(cfg.verbs)}", phrase()
    src = subj + [verb] + obj
    dst = subj[::-1] + obj[::-1] + [verb]
    return [src_id[w] for w in src], [BOS] + [dst_id[w] for w in dst] + [EOS]


def pad(rows: list[list[int]]) -> Tensor:
    n = max(map(len, rows))
    return torch.tensor([r + [PAD] * (n - len(r)) for r in rows])


def get_batch(n: int) -> tuple[Tensor, Tensor]:
    a, b = zip(*[pair() for _ in range(n)])
    return pad(list(a)), pad(list(b))


class Attend(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.h = heads
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def split(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.h, -1)).transpose(1, 2)

    def forward(self, x: Tensor, mem: Tensor, mask: Tensor | None) -> Tensor:
        q = F.normalize(self.split(self.q(x)), dim=-1)
        k, v = map(self.split, self.kv(mem).chunk(2, -1))
        k = F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d: int, heads: int, cross: bool):
        super().__init__()
        self.self_att = Attend(d, heads)
        self.cross = Attend(d, heads) if cross else None
        self.ff = nn.Sequential(nn.Linear(d, 3 * d), nn.ReLU(), nn.Linear(3 * d, d))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))

    def forward(self, x, self_mask, mem=None, mem_mask=None):
        h = self.norms[0](x)
        x = x + self.self_att(h, h, self_mask)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), mem, mem_mask)
        return x + self.ff(self.norms[2](x))


class Translator(nn.Module):
    def __init__(self, c: Cfg):
        super().__init__()
        self.es, self.et = nn.Embedding(VOC, c.d), nn.Embedding(VOC, c.d)
        self.ps, self.pt = nn.Embedding(16, c.d), nn.Embedding(16, c.d)
        self.enc = nn.ModuleList(Layer(c.d, c.heads, False) for _ in range(2))
        self.dec = nn.ModuleList(Layer(c.d, c.heads, True) for _ in range(2))
        self.ln_e, self.ln_d = nn.LayerNorm(c.d), nn.LayerNorm(c.d)
        self.out = nn.Linear(c.d, VOC)

    def forward(self, s: Tensor, t: Tensor) -> Tensor:
        seen = (s != PAD)[:, None, None, :]
        m = self.es(s) + self.ps.weight[: s.shape[1]]
        for l in self.enc:
            m = l(m, seen)
        m = self.ln_e(m)
        n = t.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        y = self.et(t) + self.pt.weight[:n]
        for l in self.dec:
            y = l(y, causal, m, seen)
        return self.out(self.ln_d(y))


model = Translator(cfg)
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=cfg.steps, pct_start=0.1)
for step in range(cfg.steps):
    s, t = get_batch(cfg.batch)
    logits = model(s, t[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), t[:, 1:].flatten(), ignore_index=PAD)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 30 == 0 or step == cfg.steps - 1:
        print(f"step={step} loss={loss.item():.4f}", flush=True)

model.eval()
with torch.no_grad():
    s, t = get_batch(300)
    logits, y = model(s, t[:, :-1]), t[:, 1:]
    keep = y != PAD
    print(f"test loss={F.cross_entropy(logits[keep], y[keep]).item():.4f} token acc={(logits[keep].argmax(-1) == y[keep]).float().mean().item():.3f}")
