import os
import socket
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing import get_context
from torch.nn.parallel import DistributedDataParallel as DDP
from pydoc_data.topics import topics

CTX, BATCH, STEPS = 32, 8, 120


def corpus():
    text = "".join(topics[k] for k in sorted(topics))[:200000]
    table = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([table[c] for c in text]), len(table)


class GRULM(nn.Module):
    def __init__(self, vocab, d=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.out = nn.Linear(2 * d, vocab)

    def forward(self, x):
        h, _ = self.rnn(self.emb(x))
        return self.out(torch.relu(self.up(self.norm(h))))


def init_weights(m):
    if isinstance(m, nn.Embedding):
        nn.init.normal_(m.weight, std=0.3)
    elif isinstance(m, nn.Linear):
        nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
        nn.init.zeros_(m.bias)
    elif isinstance(m, nn.GRU):
        for name, p in m.named_parameters():
            nn.init.orthogonal_(p) if p.dim() == 2 else nn.init.zeros_(p)


def main(rank, world, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(100 + rank)
    ids, vocab = corpus()
    shard = ids[rank * len(ids) // world:(rank + 1) * len(ids) // world]
    model = DDP(GRULM(vocab))
    model.module.apply(init_weights)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(STEPS):
        at = torch.randint(len(shard) - CTX - 1, (BATCH,))
        rows = shard[at[:, None] + torch.arange(CTX + 1)]
        logits = model(rows[:, :-1])
        loss = criterion(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 15 == 0 or step == STEPS - 1:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"[{step:3d}/{STEPS}] loss {shown.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ctx = get_context("spawn")
    procs = [ctx.Process(target=main, args=(r, 2, port)) for r in range(2)]
    for p in procs:
        p.start()
    for p in procs:
        p.join()
