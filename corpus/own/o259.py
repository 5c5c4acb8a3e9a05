import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from pydoc_data.topics import topics

CTX = 48


class Chunks(Dataset):
    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return (len(self.ids) - 1) // CTX

    def __getitem__(self, i):
        row = self.ids[i * CTX:i * CTX + CTX + 1]
        return row[:-1], row[1:]


class CharGRUFormer(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.out = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.ones(CTX, CTX, dtype=torch.bool).triu(1))

    def forward(self, ids, targets):
        x, _ = self.rnn(self.emb(ids))
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        x = x + self.ff(self.n2(x))
        return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())


def worker(rank, world, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(14)
    text = "".join(topics[k] for k in sorted(topics))[:120000]
    chars = sorted(set(text))
    table = {c: i for i, c in enumerate(chars)}
    ids = torch.tensor([table[c] for c in text])
    train, held = Chunks(ids[:-8000]), Chunks(ids[-8000:])
    sampler = DistributedSampler(train, num_replicas=world, rank=rank, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=8, sampler=sampler, drop_last=True)
    vx, vy = (torch.stack(t) for t in zip(*[held[i] for i in range(64)]))
    model = DDP(CharGRUFormer(len(chars)))
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    step = 0
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = model.module(x, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0 or step == 79:
                with torch.no_grad():
                    val = model.module(vx, vy).item()
                print(f"[rank {rank}] step {step} loss {loss.item():.4f} held-out {val:.4f}", flush=True)
            step += 1
            if step == 80:
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)
