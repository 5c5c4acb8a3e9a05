import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
rng = torch.Generator().manual_seed(2024)
torch.manual_seed(2024)

N_KEYS, N_VALS, SLOTS, WIDTH, HEADS = 32, 24, 16, 64, 2


def episodes(n):
    keys = torch.stack([torch.randperm(N_KEYS, generator=rng)[:SLOTS] for _ in range(n)])
    vals = torch.randint(0, N_VALS, (n, SLOTS), generator=rng)
    pick = torch.randint(0, SLOTS, (n, 4), generator=rng)
    return keys, vals, keys.gather(1, pick), vals.gather(1, pick)


class QKNormAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def split(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x, ctx):
        q = self.split(self.to_q(x))
        k, v = map(self.split, self.to_kv(ctx).chunk(2, dim=-1))
        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)
        o = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(o.transpose(1, 2).flatten(2))


class MemoryReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.key_emb = nn.Embedding(N_KEYS, WIDTH)
        self.val_emb = nn.Embedding(N_VALS, WIDTH)
        self.norm_q = nn.LayerNorm(WIDTH)
        self.norm_m = nn.LayerNorm(WIDTH)
        self.read = QKNormAttention(WIDTH, HEADS)
        self.ff = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, N_VALS))

    def forward(self, keys, vals, query):
        mem = self.norm_m(self.key_emb(keys) + self.val_emb(vals))
        x = self.key_emb(query)
        x = x + self.read(self.norm_q(x), mem)
        x = x + self.ff(x)
        return self.out(x)


def train(steps=250, batch=64):
    net = MemoryReader()
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=steps, pct_start=0.1)
    for s in range(steps):
        keys, vals, query, answer = episodes(batch)
        logits = net(keys, vals, query)
        loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if s % 25 == 0 or s == steps - 1:
            acc = (logits.argmax(-1) == answer).float().mean()
            print(f"{s:>4} loss={loss:.4f} acc={acc:.3f}")
    return net


train()
