from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

NONE = -1
REST = 24


@dataclass
class Cfg:
    bars: int = 40
    d: int = 64
    layers: int = 2
    batch: int = 48
    steps: int = 240
    lr: float = 2e-3


HEADS = {"length": 6, "pitch": 24, "breath": 8}


def melodies(n, T, g):
    key = torch.randint(0, 12, (n,), generator=g)
    scale = torch.tensor([0, 2, 4, 5, 7, 9, 11])
    deg = torch.randint(0, 14, (n,), generator=g)
    length = torch.randint(0, 6, (n,), generator=g)
    cols = []
    for t in range(T):
        jump = torch.rand(n, generator=g) < 0.12
        deg = torch.where(jump, torch.randint(0, 14, (n,), generator=g), (deg + 1 + length % 2) % 14)
        pitch = (scale[deg % 7] + 12 * (deg // 7) + key) % 24
        rest = (deg + t) % 4 == 0
        length = torch.where(torch.rand(n, generator=g) < 0.1,
                             torch.randint(0, 6, (n,), generator=g), (length + deg) % 6)
        breath = (length + 2 * (t % 4)) % 8
        sym = torch.where(rest, torch.full_like(pitch, REST), pitch)
        cols.append(torch.stack([sym, length, torch.where(rest, breath, torch.full_like(breath, NONE)), deg], -1))
    return torch.stack(cols, 1)


class Composer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.sym = nn.Embedding(25, c.d)
        self.len = nn.Embedding(6, c.d)
        self.deg = nn.Embedding(14, c.d)
        self.pos = nn.Parameter(0.1 * torch.randn(c.bars, c.d))
        layer = nn.TransformerEncoderLayer(c.d, 4, 2 * c.d, dropout=0.0, batch_first=True, norm_first=True)
        self.core = nn.TransformerEncoder(layer, c.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(c.d)
        self.heads = nn.ModuleDict({k: nn.Sequential(nn.Linear(c.d, c.d), nn.GELU(), nn.Linear(c.d, n))
                                    for k, n in HEADS.items()})

    def forward(self, ev):
        T = ev.shape[1]
        h = self.sym(ev[..., 0]) + self.len(ev[..., 1]) + self.deg(ev[..., 3]) + self.pos[:T]
        causal = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.norm(self.core(h, mask=causal, is_causal=True))
        return {k: f(h) for k, f in self.heads.items()}


def targets(ev):
    nxt = ev[:, 1:]
    pitch = torch.where(nxt[..., 0] == REST, torch.full_like(nxt[..., 0], NONE), nxt[..., 0])
    return {"length": nxt[..., 1], "pitch": pitch, "breath": nxt[..., 2]}


def score(out, tgt, valid):
    parts = {}
    for name, logits in out.items():
        y = tgt[name]
        keep = valid & (y != NONE)
        nll = F.cross_entropy(logits.transpose(1, 2), y.clamp(min=0), reduction="none")
        parts[name] = nll.masked_fill(~keep, 0.0).sum() / keep.sum().clamp(min=1)
    return parts


def padding(n, T, g):
    lens = torch.randint(T // 2, T + 1, (n, 1), generator=g)
    return torch.arange(T) < lens


@torch.no_grad()
def hit_rates(net, ev):
    out, tgt = net(ev[:, :-1]), targets(ev)
    return {k: (out[k].argmax(-1) == tgt[k])[tgt[k] != NONE].float().mean().item() for k in HEADS}


def run(c=Cfg()):
    torch.manual_seed(2)
    g = torch.Generator().manual_seed(40)
    corpus, held = melodies(4000, c.bars + 1, g), melodies(200, c.bars + 1, g)
    net = Composer(c)
    opt = torch.optim.AdamW(net.parameters(), lr=c.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20) * (1 - 0.8 * s / c.steps))
    for step in range(c.steps):
        ev = corpus[torch.randint(0, len(corpus), (c.batch,), generator=g)]
        parts = score(net(ev[:, :-1]), targets(ev), padding(c.batch, c.bars, g))
        loss = sum(parts.values())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 20 == 0 or step == c.steps - 1:
            print(step, f"loss {loss.item():.4f}", flush=True)
    print("held-out hit rates", {k: round(v, 3) for k, v in hit_rates(net, held).items()})


run()
