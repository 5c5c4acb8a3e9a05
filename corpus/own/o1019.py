import math
import os
import socket
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class GPTConfig:
    vocab_size: int = 0
    block_size: int = 48
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64


learning_rate = 2e-3
max_iters = 220
warmup_iters = 20
batch_size = 16
eval_interval = 40
seed = 1337


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=False)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = SelfAttention(c)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(), nn.Linear(4 * c.n_embd, c.n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for b in self.h:
            x = b(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


def load_corpus():
    """Prose topics first, then the second half of the archive, which is kept mirrored and in capitals."""
    text = "".join(topics[k] for k in sorted(topics))[:160000]
    half = len(text) // 2
    a, b = text[:half], text[half:].upper()[::-1]
    chars = sorted(set(a + b))
    lut = {ch: i for i, ch in enumerate(chars)}
    enc = lambda s: torch.tensor([lut[ch] for ch in s])
    cut = int(0.9 * half)
    shards = [enc(a[:cut]), enc(b[:cut])]
    val = [enc(a[cut:]), enc(b[cut:])]
    return shards, val, len(chars)


def get_batch(data, g, block):
    ix = torch.randint(len(data) - block - 1, (batch_size,), generator=g).tolist()
    return (torch.stack([data[i:i + block] for i in ix]),
            torch.stack([data[i + 1:i + 1 + block] for i in ix]))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    r = (it - warmup_iters) / (max_iters - warmup_iters)
    return 0.1 * learning_rate + 0.45 * learning_rate * (1 + math.cos(math.pi * r))


@torch.no_grad()
def estimate_loss(model, val, block):
    model.eval()
    g = torch.Generator().manual_seed(0)
    out = [sum(model(*get_batch(d, g, block))[1].item() for _ in range(4)) / 4 for d in val]
    model.train()
    return sum(out) / len(out)


def worker(rank, world, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(seed)
    shards, val, vocab = load_corpus()
    cfg = GPTConfig(vocab_size=vocab)
    data = shards[rank]
    g = torch.Generator().manual_seed(seed + rank)
    raw_model = GPT(cfg)
    model = DDP(raw_model)
    opt = torch.optim.AdamW(raw_model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    for it in range(max_iters):
        for group in opt.param_groups:
            group["lr"] = get_lr(it)
        X, Y = get_batch(data, g, cfg.block_size)
        logits, loss = model(X, Y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(raw_model.parameters(), 1.0)
        opt.step()
        if rank == 0 and it % 20 == 0:
            print(f"iter {it}: loss {loss.item():.4f}", flush=True)
        if (it + 1) % eval_interval == 0 or it + 1 == max_iters:
            if rank == 0:
                print(f"iter {it + 1}: val loss {estimate_loss(raw_model, val, cfg.block_size):.4f}", flush=True)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(2, port), nprocs=2)
