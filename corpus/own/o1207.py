from __future__ import annotations
import argparse
import time
import torch
from torch import nn, Tensor
from torch.nn.functional import cross_entropy, silu

parser = argparse.ArgumentParser()
parser.add_argument("--row", type=int, default=96)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--steps", type=int, default=360)
parser.add_argument("--lr", type=float, default=0.0007)
parser.add_argument("--wd", type=float, default=0.1)
args = parser.parse_args()
PITCHES = 36
START = PITCHES
IGNORE = -1


class Composer:
    SCALE = torch.tensor([0, 2, 4, 5, 7, 9, 11])

    def __init__(self, seed: int):
        self.g = torch.Generator().manual_seed(seed)
        self.probs = []
        for key in range(12):
            allowed = torch.isin((torch.arange(PITCHES) - key) % 12, self.SCALE)
            dist = (torch.arange(PITCHES)[:, None] - torch.arange(PITCHES)[None, :]).abs()
            w = torch.where(dist <= 9, 1.0, 0.0) * allowed
            self.probs.append(w / w.sum(1, keepdim=True))
        self.probs = torch.stack(self.probs)

    def tunes(self, n: int, length: int) -> tuple[Tensor, Tensor]:
        key = torch.randint(12, (n,), generator=self.g)
        notes = torch.empty(n, length, dtype=torch.long)
        notes[:, 0] = key + 12
        ent = torch.zeros(n, length)
        for t in range(1, length):
            p = self.probs[key, notes[:, t - 1]]
            notes[:, t] = torch.multinomial(p, 1, generator=self.g)[:, 0]
            ent[:, t] = torch.special.entr(p).sum(-1)
        return (notes, ent)

    def packed(self, batch: int, row: int):
        ids = torch.full((batch, row), START)
        target = torch.full((batch, row), IGNORE)
        doc = torch.zeros(batch, row, dtype=torch.long)
        floor = torch.zeros(batch, row)
        notes, ent = self.tunes(batch * 5, 40)
        used = 0
        for b in range(batch):
            at, d = (0, 0)
            while row - at >= 12:
                n = min(int(torch.randint(12, 41, (1,), generator=self.g)), row - at)
                tune, used = (notes[used % len(notes)], used + 1)
                ids[b, at + 1 : at + n] = tune[: n - 1]
                target[b, at + 1 : at + n] = tune[1:n]
                floor[b, at + 1 : at + n] = ent[(used - 1) % len(ent), 1:n]
                doc[b, at : at + n] = d
                at, d = (at + n, d + 1)
            doc[b, at:] = d
        return (ids, target, doc, floor[target != IGNORE].mean().item())


class GQA(nn.Module):
    def __init__(self, d: int, heads: int, groups: int):
        super().__init__()
        self.h, self.g, self.hd = (heads, groups, d // heads)
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * groups * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        nn.init.zeros_(self.o.weight)
        self.register_buffer("slope", 2.0 ** (-torch.arange(2, 2 + 2 * heads, 2).float()))

    def forward(self, x: Tensor, allowed: Tensor, gap: Tensor) -> Tensor:
        B, T, D = x.shape
        q = self.q(x).view(B, T, self.g, self.h // self.g, self.hd)
        k, v = self.kv(x).view(B, T, 2, self.g, self.hd).unbind(2)
        s = torch.einsum("bqgrd,bkgd->bgrqk", q, k) * self.hd ** (-0.5)
        s = s - self.slope.view(1, self.g, -1, 1, 1) * gap
        s = s.masked_fill(~allowed[:, None, None], float("-inf"))
        return self.o(torch.einsum("bgrqk,bkgd->bqgrd", s.softmax(-1), v).reshape(B, T, D))


class Melody(nn.Module):
    def __init__(self, d: int = 64, layers: int = 2):
        super().__init__()
        self.emb = nn.Embedding(PITCHES + 1, d)
        self.att = nn.ModuleList((GQA(d, 4, 2) for _ in range(layers)))
        self.up = nn.ModuleList((nn.Linear(d, 4 * d) for _ in range(layers)))
        self.down = nn.ModuleList((nn.Linear(2 * d, d) for _ in range(layers)))
        self.norms = nn.ModuleList((nn.RMSNorm(d) for _ in range(2 * layers + 1)))
        for m in self.down:
            nn.init.zeros_(m.weight)
        self.head = nn.Linear(d, PITCHES)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor, doc: Tensor) -> Tensor:
        t = torch.arange(ids.size(1))
        allowed = (doc[:, :, None] == doc[:, None, :]) & (t[:, None] >= t[None, :])
        gap = (t[:, None] - t[None, :]).clamp_min(0).float()
        x = self.emb(ids)
        for i, (att, up, down) in enumerate(zip(self.att, self.up, self.down)):
            x = x + att(self.norms[2 * i](x), allowed, gap)
            a, b = up(self.norms[2 * i + 1](x)).chunk(2, -1)
            x = x + down(silu(a) * b)
        return self.head(self.norms[-1](x))


class Lion:
    def __init__(self, params, lr, wd, betas=(0.9, 0.98)):
        self.params = [p for p in params if p.requires_grad]
        self.lr, self.wd, self.betas = (lr, wd, betas)
        self.m = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, factor: float):
        for p, m in zip(self.params, self.m):
            direction = torch.sign(torch.lerp(p.grad, m, self.betas[0]))
            if p.ndim > 1:
                p.mul_(1 - self.lr * factor * self.wd)
            p.add_(direction, alpha=-self.lr * factor)
            m.lerp_(p.grad, 1 - self.betas[1])
            p.grad = None


def main():
    torch.manual_seed(31)
    data, model = (Composer(1), Melody())
    opt = Lion(model.parameters(), args.lr, args.wd)
    t0 = time.time()
    for step in range(args.steps):
        ids, target, doc, _ = data.packed(args.batch, args.row)
        loss = cross_entropy(model(ids, doc).flatten(0, 1), target.flatten(), ignore_index=IGNORE)
        loss.backward()
        opt.step(min(step / 20, 1.0, max(0.02, (args.steps - step) / (args.steps * 0.4))))
        if step % 40 == 0 or step == args.steps - 1:
            print(f"step {step:3d}  loss {loss.item():.4f}  {time.time() - t0:.1f}s")
    with torch.no_grad():
        ids, target, doc, floor = Composer(2).packed(200, args.row)
        val = cross_entropy(
            model(ids, doc).flatten(0, 1), target.flatten(), ignore_index=IGNORE
        ).item()
    print(
        f"val {val:.4f}   composer's own entropy {floor:.4f}   uniform {torch.tensor(float(PITCHES)).log():.4f}"
    )


if __name__ == "__main__":
    main()
