import argparse
import math
import operator
import random
import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=300)
ap.add_argument("--warmup", type=int, default=30)
ap.add_argument("--width", type=int, default=64)
ap.add_argument("--batch", type=int, default=32)
args = ap.parse_args()

HOPS = {
    "N": [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)],
    "K": [(1, 0), (0, 1), (-1, 0), (0, -1)],
}
PLIES, VOCAB = 32, 65


def game(rng):
    sq = {"N": rng.randrange(64), "K": rng.randrange(64)}
    line = [64]
    for ply in range(PLIES):
        who = "NK"[ply % 2]
        r, f = divmod(sq[who], 8)
        moves = [(r + a) * 8 + f + b for a, b in HOPS[who] if 0 <= r + a < 8 and 0 <= f + b < 8]
        other = sq["NK"[(ply + 1) % 2]]
        moves.sort(key=lambda s: (abs(s // 8 - other // 8) + abs(s % 8 - other % 8), s))
        sq[who] = moves[0] if rng.random() < 0.7 else rng.choice(moves)
        line.append(sq[who])
    return line


def split_groups(net):
    emb, mats, vecs = [], [], []
    for name, p in net.named_parameters():
        (emb if "emb" in name else mats if p.dim() > 1 else vecs).append(p)
    return [dict(params=emb, lr=6e-3, weight_decay=0.0),
            dict(params=mats, lr=3e-3, weight_decay=0.05),
            dict(params=vecs, lr=3e-3, weight_decay=0.0)]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True, bias=False)
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x, mask):
        y = self.n1(x)
        x = x + self.att(y, y, y, attn_mask=mask, need_weights=False)[0]
        y = self.n2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class MoveModel(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb_sq = nn.Embedding(VOCAB, d)
        self.emb_ply = nn.Embedding(PLIES, d)
        for e in (self.emb_sq, self.emb_ply):
            nn.init.normal_(e.weight, std=0.05)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, VOCAB)
        self.register_buffer("mask", torch.ones(PLIES, PLIES, dtype=torch.bool).triu(1))

    def forward(self, s):
        h = self.emb_sq(s) + self.emb_ply.weight[: s.shape[1]]
        for b in self.blocks:
            h = b(h, self.mask)
        return self.head(self.norm(h))


def shape(step):
    if step < args.warmup:
        return (step + 1) / args.warmup
    u = (step - args.warmup) / max(1, args.steps - args.warmup)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * u))


rng = random.Random(8)
torch.manual_seed(8)
book = torch.tensor([game(rng) for _ in range(6000)])
held = torch.tensor([game(rng) for _ in range(300)])
net = MoveModel(args.width)
opt = torch.optim.AdamW(split_groups(net), betas=(0.9, 0.98))
peaks = map(operator.itemgetter("lr"), opt.param_groups)

for step in range(args.steps):
    for group, peak in zip(opt.param_groups, peaks):
        group["lr"] = peak * shape(step)
    batch = book[torch.randint(0, len(book), (args.batch,))]
    loss = nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 25 == 0 or step == args.steps - 1:
        print(f"{step:4d}  loss {loss.item():.4f}")

net.eval()
with torch.no_grad():
    hl = nn.functional.cross_entropy(net(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten())
print(f"held-out {hl.item():.4f}")
