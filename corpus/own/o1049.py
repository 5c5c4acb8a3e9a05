import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

ITEMS, HIST, DIM = 120, 16, 48


def visits(n, seed, markets=(0, 1)):
    g = torch.Generator().manual_seed(seed)
    world = torch.Generator().manual_seed(0)
    half = ITEMS // 2
    hop = torch.stack([torch.cat([torch.randperm(half, generator=world) + m * half for m in (0, 1)])
                       for _ in range(2)])
    home = torch.tensor(markets)[torch.randint(len(markets), (n, 1), generator=g)]
    seq = torch.randint(half, (n, HIST + 1), generator=g) + home * half
    for t in range(1, HIST + 1):
        u = torch.rand(n, generator=g)
        seq[:, t] = torch.where(u < 0.65, hop[0][seq[:, t - 1]],
                                torch.where(u < 0.85, hop[1][seq[:, t - 1]], seq[:, t]))
    return seq


class SASRec(nn.Module):
    def __init__(self, heads=2, layers=2):
        super().__init__()
        self.item = nn.Embedding(ITEMS, DIM)
        self.pos = nn.Embedding(HIST, DIM)
        layer = nn.TransformerEncoderLayer(DIM, heads, 2 * DIM, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.LayerNorm(DIM)
        nn.init.normal_(self.item.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, history):
        T = history.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.enc(self.item(history) + self.pos.weight[:T], mask=causal, is_causal=True)
        return self.out(h) @ self.item.weight.T


@torch.no_grad()
def recall_at(model, seq, k=1):
    model.eval()
    scores = model(seq[:, :-1])[:, -1]
    hits = (scores.topk(k, -1).indices == seq[:, -1:]).any(-1).float().mean().item()
    model.train()
    return hits


def worker(rank, world_size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(100 + rank)
    model = DDP(SASRec())
    net = model.module if isinstance(model, DDP) else model
    shard = TensorDataset(visits(240, 1 + rank, markets=(rank,)))
    loader = DataLoader(shard, batch_size=16, shuffle=True, drop_last=True)
    held = visits(600, 9)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    epochs = 12
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        total = 0.0
        for (seq,) in loader:
            scores = model(seq[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), seq[:, 1:].flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        hit = recall_at(net, held)
        if rank == 0:
            print(f"epoch {epoch:2d} loss {total / len(loader):.4f} recall@1 {hit:.3f}", flush=True)
    dist.barrier()
    with torch.no_grad():
        net.eval()
        nll = F.cross_entropy(net(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten()).item()
    if rank == 0:
        print(f"held-out nll {nll:.4f} recall@5 {recall_at(net, held, 5):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(worker, args=(2, free), nprocs=2)
