import os
import random
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics
from torch.nn.parallel import DistributedDataParallel as DDP

PAD = 0
MAXLEN = 112
HP = dict(dim=96, layers=2, heads=4, lr=1.5e-3, batch=8, steps=140, seed=99)


def build_examples():
    text = "\n".join(topics.values())
    lines = [l.strip() for l in text.split("\n")]
    chars = sorted(set(text))
    enc = {c: i + 1 for i, c in enumerate(chars)}
    continuations, ratings = [], []
    for a, b in zip(lines, lines[1:]):
        if len(a) < 4 or len(b) < 2:
            continue
        prompt = [enc[c] for c in a[-32:]] + [enc["\n"]]
        answer = [enc[c] for c in b[:72]] + [enc["\n"]]
        continuations.append((prompt, answer))
        stars = min(9, max(0, round(random.gauss(len(a) / 9, 2.0))))
        ratings.append((prompt, [enc[str(stars)]]))
    return ratings, continuations, len(chars) + 1


def collate(items):
    x = torch.full((len(items), MAXLEN), PAD)
    y = torch.full((len(items), MAXLEN), -100)
    for r, (p, a) in enumerate(items):
        seq = torch.tensor(p + a)
        x[r, :len(seq) - 1] = seq[:-1]
        y[r, len(p) - 1:len(seq) - 1] = seq[len(p):]
    longest = int((x != PAD).sum(1).max())
    return x[:, :longest], y[:, :longest]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = [z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1)]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Chat(nn.Module):
    def __init__(self, vocab, dim, layers, heads):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(MAXLEN, dim) * 0.02)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        nn.init.normal_(self.emb.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x):
        h = self.emb(x) + self.pos[:x.shape[1]]
        for l in self.layers:
            h = l(h)
        return self.head(self.norm(h))


def run(rank, world, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(HP["seed"])
    random.seed(HP["seed"])

    ratings, continuations, vocab = build_examples()
    held = ratings[::40][:120] + continuations[7::40][:120]
    sources = [ratings[1::2], continuations[::2]]
    mine = sources[rank]
    rng = random.Random(HP["seed"] + rank)

    net = Chat(vocab, HP["dim"], HP["layers"], HP["heads"])
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=HP["lr"], betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) / 20, max(0.1, 1 - s / HP["steps"])))
    hx, hy = collate(held)

    for step in range(HP["steps"]):
        x, y = collate(rng.sample(mine, HP["batch"]))
        logits = model(x)
        total = F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
        stats = torch.stack([total.detach(), (y != -100).sum().float()])
        dist.all_reduce(stats)
        loss = total * world / stats[1]
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if rank == 0 and (step % 15 == 0 or step == HP["steps"] - 1):
            print(f"step {step} loss {(stats[0] / stats[1]).item():.4f} tokens {int(stats[1])}", flush=True)

    if rank == 0:
        with torch.no_grad():
            v = F.cross_entropy(net(hx).flatten(0, 1), hy.flatten(), ignore_index=-100)
        print(f"held-out {v.item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("", 0))
        free = s.getsockname()[1]
    mp.spawn(run, (2, free), nprocs=2)
