import os
import socket
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS, LENGTH, TOPICS = 1200, 16, 6


def make_documents(n, seed):
    g = torch.Generator().manual_seed(seed)
    lean = torch.randint(TOPICS, (WORDS,), generator=torch.Generator().manual_seed(99))
    docs = []
    for _ in range(n):
        label = int(torch.randint(TOPICS, (1,), generator=g))
        words = torch.randint(WORDS, (LENGTH,), generator=g)
        own = (lean == label).nonzero().flatten()
        put = torch.rand(LENGTH, generator=g) < 0.4
        words[put] = own[torch.randint(len(own), (int(put.sum()),), generator=g)]
        docs.append((words, label))
    return docs


class DocumentStream(IterableDataset):
    def __init__(self, docs, seed=0):
        self.docs, self.seed, self.epoch = docs, seed, 0

    def __iter__(self):
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        order = torch.randperm(len(self.docs), generator=torch.Generator().manual_seed(self.seed + self.epoch))
        self.epoch += 1
        for i in order.tolist()[part::parts]:
            yield self.docs[i]


class TopicNet(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(WORDS, d)
        self.q = nn.Parameter(torch.randn(1, 1, d) * 0.05)
        self.att = nn.MultiheadAttention(d, 4, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, TOPICS))

    def forward(self, x):
        h = self.emb(x)
        pooled, _ = self.att(self.q.expand(len(x), -1, -1), h, h, need_weights=False)
        return self.ff(pooled.squeeze(1) + h.mean(1))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world


def worker(rank, world, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(13)
    model = TopicNet()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    docs = make_documents(4800, 1)
    held = make_documents(600, 2)
    hx, hy = torch.stack([w for w, _ in held]), torch.tensor([l for _, l in held])
    stream = DocumentStream(docs)
    loader = DataLoader(stream, batch_size=16, num_workers=0)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    step, total = 0, 120
    while step < total:
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            average_gradients(model, world)
            opt.step()
            if rank == 0 and (step % 20 == 0 or step == total - 1):
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            step += 1
            if step == total:
                break
    if rank == 0:
        with torch.no_grad():
            out = model(hx)
        print(f"held-out loss {F.cross_entropy(out, hy).item():.4f} acc {(out.argmax(-1) == hy).float().mean():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)
