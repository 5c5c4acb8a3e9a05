import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from pydoc_data.topics import topics

T, V = 24, 128
text = "".join(topics[k] for k in sorted(topics))[:60000]
ids = torch.tensor([min(ord(c), V - 1) for c in text])
rows = ids[: (len(ids) // (T + 1)) * (T + 1)].view(-1, T + 1)


class TinyLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.pos = nn.Parameter(torch.zeros(T, d))
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, V)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(T))

    def forward(self, x):
        h = self.embed(x) + self.pos
        return self.head(self.body(h, mask=self.mask, is_causal=True))


def work(rank, world):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29612"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyLM()
    net = model
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    sampler = DistributedSampler(rows, num_replicas=world, rank=rank, shuffle=True, seed=1)
    loader = DataLoader(TensorDataset(rows), batch_size=16, sampler=sampler)
    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            x, y = batch[:, :-1], batch[:, 1:]
            loss = nn.functional.cross_entropy(net(x).reshape(-1, V), y.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            pass
            optimizer.step()
            if rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            step += 1
            if step >= 120:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
