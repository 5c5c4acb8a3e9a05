import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

WORLD, SEED, STEPS, BS = 2, 41, 120, 24
VOCAB, TOPICS, T = 200, 24, 12


def make_corpus(n):
    g = torch.Generator().manual_seed(SEED)
    words = torch.stack([torch.randperm(VOCAB - 1, generator=g)[:8] + 1 for _ in range(TOPICS)])

    def text(a, b):
        pick = torch.where(torch.rand(n, T, generator=g) < 0.5, a[:, None], b[:, None])
        tok = words[pick, torch.randint(0, 8, (n, T), generator=g)]
        noise = torch.rand(n, T, generator=g) < 0.15
        tok = torch.where(noise, torch.randint(1, VOCAB, (n, T), generator=g), tok)
        length = torch.randint(8, T + 1, (n, 1), generator=g)
        return tok * (torch.arange(T)[None] < length)

    a, b = torch.randint(0, TOPICS, (2, n), generator=g)
    return text(a, b), text(a, b)


class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d, padding_idx=0), nn.Embedding(T, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(d, 48, bias=False)
        nn.init.normal_(self.tok.weight, std=0.3)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, ids):
        pad = ids == 0
        h = self.body(self.tok(ids) + self.pos.weight, src_key_padding_mask=pad)
        h = h.masked_fill(pad.unsqueeze(-1), 0).sum(1) / (~pad).sum(1, keepdim=True)
        return F.normalize(self.proj(h), dim=-1)


class GatherLayer(torch.autograd.Function):
    """Embeddings of all workers; gradients of all workers flow back to the owner."""

    @staticmethod
    def forward(ctx, z):
        parts = [torch.zeros_like(z) for _ in range(WORLD)]
        dist.all_gather(parts, z.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(WORLD)[dist.get_rank()]


gather = GatherLayer.apply


class BiEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.doc = Encoder(), Encoder()
        self.log_scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, q, d):
        scale = self.log_scale.clamp(max=4.0).exp()
        zq, zd = self.query(q), self.doc(d)
        labels = torch.arange(len(q))
        loss = F.cross_entropy(scale * zq @ gather(zd).t(), labels)
        return 0.5 * (loss + F.cross_entropy(scale * zd @ gather(zq).t(), labels))


def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= dist.get_world_size()


@torch.no_grad()
def recall_at(model, q, d, k):
    top = (model.query(q) @ model.doc(d).t()).topk(k, 1).indices
    return (top == torch.arange(len(q))[:, None]).any(1).float().mean().item()


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(SEED + rank)
    queries, docs = make_corpus(4200)
    model = BiEncoder()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    shard = torch.arange(rank, 4000, WORLD)
    for step in range(STEPS):
        for g in opt.param_groups:
            g["lr"] = 2e-3 * min(1.0, (step + 1) / 30)
        i = shard[torch.randint(0, len(shard), (BS,))]
        loss = model(queries[i], docs[i])
        opt.zero_grad()
        loss.backward()
        average_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 15 == 0 or step == STEPS - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                r1 = recall_at(model, queries[4000:], docs[4000:], 1)
                r10 = recall_at(model, queries[4000:], docs[4000:], 10)
                print(f"step {step:3d} loss {mean.item() / WORLD:.4f} R@1 {r1:.3f} R@10 {r10:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(29500 + os.getpid() % 1000,), nprocs=WORLD)
