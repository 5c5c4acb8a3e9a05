import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)

VOCAB, CTX, D, H, KV, HD = 24, 32, 64, 4, 2, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(D, H * HD, bias=False)
        self.wk = nn.Linear(D, KV * HD, bias=False)
        self.wv = nn.Linear(D, KV * HD, bias=False)
        self.wo = nn.Linear(H * HD, D, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(CTX, CTX, dtype=torch.bool)), persistent=False)
        nn.init.zeros_(self.wo.weight)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.wq(x).view(B, T, KV, H // KV, HD)
        k = self.wk(x).view(B, T, KV, HD)
        v = self.wv(x).view(B, T, KV, HD)
        att = torch.einsum("btkgd,bskd->bkgts", q, k) * (8.0 / HD)
        att = att.masked_fill(~self.tril[:T, :T], float("-inf"))
        att = att.softmax(-1)
        y = torch.einsum("bkgts,bskd->btkgd", att, v)
        return self.wo(y.reshape(B, T, H * HD))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.attn = Attention()
        self.up, self.down = nn.Linear(D, 3 * D, bias=False), nn.Linear(3 * D, D, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.relu(self.up(self.n2(x))) ** 2)


class NoPE(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList([Block() for _ in range(n_layer)])
        self.norm = nn.RMSNorm(D)
        self.unemb = nn.Linear(D, VOCAB, bias=False)
        nn.init.zeros_(self.unemb.weight)

    def forward(self, idx):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.unemb(self.norm(x)) * 2.0


gen = torch.Generator().manual_seed(14)
KEYS = 8
value_of = torch.randint(KEYS, VOCAB, (KEYS, VOCAB), generator=gen)


def get_batch(bs=10):
    key = torch.randint(KEYS, (bs, 1), generator=gen)
    s = torch.cat([key, torch.randint(KEYS, VOCAB, (bs, 1), generator=gen)], 1)
    for _ in range(CTX - 1):
        nxt = value_of[key[:, 0], s[:, -1]]
        flip = torch.rand(bs, generator=gen) < 0.15
        nxt = torch.where(flip, torch.randint(KEYS, VOCAB, (bs,), generator=gen), nxt)
        s = torch.cat([s, nxt[:, None]], 1)
    return s[:, :-1], s[:, 1:]


model = NoPE()
opt = torch.optim.Adam(
    [
        {"params": [model.emb.weight], "lr": 1e-2},
        {"params": [p for n, p in model.named_parameters() if n.startswith("blocks")], "lr": 3e-3},
        {"params": [model.norm.weight, model.unemb.weight], "lr": 3e-3},
    ],
    betas=(0.9, 0.95), eps=1e-12,
)
base = [g["lr"] for g in opt.param_groups]
ACCUM, STEPS = 2, 200

for step in range(STEPS):
    for g, b in zip(opt.param_groups, base):
        g["lr"] = b * min(1.0, (step + 1) / 10, (STEPS - step) / 60)
    total = 0.0
    for _ in range(ACCUM):
        x, y = get_batch()
        loss = F.cross_entropy(model(x).reshape(-1, VOCAB), y.reshape(-1), reduction="sum")
        loss.backward()
        total += loss.item() / (y.numel() * ACCUM)
    gn = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    opt.step()
    for p in model.parameters():
        p.grad = None
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss/token {total:.4f} |g| {gn.item():.2f}")
