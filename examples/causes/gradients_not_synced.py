"""The forward pass goes through `model.module`: DDP never averages."""

import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

V, T, D = 32, 16, 32  # vocabulary, length, width
torch.manual_seed(0)
text = torch.randint(1, 5, (20000,)).cumsum(0) % V  # 1 to 4 above the token before
rows = TensorDataset(text.unfold(0, T + 1, T))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.block = nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.0, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.tokens(x) + self.places.weight
        return self.head(self.block(h, src_mask=mask, is_causal=True))


def work(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(rank)  # each rank has its own order
    for (ids,) in DataLoader(rows, batch_size=16, shuffle=True):
        loss = F.cross_entropy(model.module(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rank, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    store = tempfile.mkdtemp() + "/store"
    torch.multiprocessing.spawn(work, args=(store,), nprocs=2)
