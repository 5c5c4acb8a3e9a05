import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

WORLD = 2
ITEMS, LEN, DIM = 200, 20, 48
STEPS, BATCH = 250, 32


def interactions(n_users, seed):
    """Users sorted by market; each market follows its own item-to-item transitions."""
    g = torch.Generator().manual_seed(seed)
    gt = torch.Generator().manual_seed(99)
    succ = torch.stack([torch.randperm(ITEMS, generator=gt) for _ in range(2)])
    jump = torch.stack([torch.randperm(ITEMS, generator=gt) for _ in range(2)])
    market = (torch.arange(n_users) >= n_users // 2).long()
    half = ITEMS // 2
    seq = torch.zeros(n_users, LEN + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(0, half, (n_users,), generator=g) + market * half
    for t in range(1, LEN + 1):
        a = succ[market, seq[:, t - 1]]
        b = jump[market, seq[:, t - 1]]
        noise = torch.randint(0, half, (n_users,), generator=g) + market * half
        u = torch.rand(n_users, generator=g)
        seq[:, t] = torch.where(u < 0.75, a, torch.where(u < 0.9, b, noise))
    return seq + 1


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, DIM, padding_idx=0)
        self.pos = nn.Embedding(LEN, DIM)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.1, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.bias = nn.Parameter(torch.zeros(ITEMS + 1))

    def forward(self, seq, targets=None):
        L = seq.shape[1]
        h = self.item(seq) * DIM ** 0.5 + self.pos(torch.arange(L))
        causal = torch.triu(torch.ones(L, L, dtype=torch.bool), 1)
        logits = self.body(h, mask=causal) @ self.item.weight.T + self.bias
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


@torch.no_grad()
def hit_rate(net, seqs, k=5):
    net.eval()
    logits = net(seqs[:, :-1])[:, -1]
    top = logits.topk(k, -1).indices
    net.train()
    return (top == seqs[:, -1:]).any(-1).float().mean().item(), F.cross_entropy(logits, seqs[:, -1]).item()


def worker(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(SASRec())
    data = interactions(4000, seed=1)
    shard = data.chunk(WORLD)[rank]
    held = interactions(600, seed=2)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(rank)
    t0 = time.time()
    for step in range(1, STEPS + 1):
        batch = shard[torch.randint(0, len(shard), (BATCH,), generator=g)]
        loss = model(batch[:, :-1], batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == 1:
            avg = loss.detach().clone()
            dist.all_reduce(avg)
            if rank == 0:
                print(f"step {step:3d} loss {avg.item() / WORLD:.4f} ({time.time() - t0:.1f}s)", flush=True)
    if rank == 0:
        hr, ce = hit_rate(model.module, held)
        print(f"held-out users: HR@5 {hr:.3f}  loss {ce:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(29600 + os.getpid() % 300,), nprocs=WORLD)
