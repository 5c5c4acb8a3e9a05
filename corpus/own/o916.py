import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(2)
torch.manual_seed(2)
NAMES, OPS, NUMS = [f"v{i}" for i in range(8)], ["+", "-", "*"], [str(i) for i in range(10)]
SPECIAL = ["<pad>", "<pre>", "<suf>", "<mid>", "<eot>"]
itos = SPECIAL + NAMES + OPS + NUMS + ["=", ";", "return"]
stoi = {t: i for i, t in enumerate(itos)}
PAD, PRE, SUF, MID, EOT = range(5)
CTX = 36


def program():
    a, b, c = random.sample(NAMES, 3)
    op = random.choice(OPS)
    lines = [[a, "=", random.choice(NUMS), ";"], [b, "=", a, op, random.choice(NUMS), ";"],
             [c, "=", a, op, b, ";"], ["return", c, ";"]]
    return lines


def fim_example():
    lines = program()
    cut = random.choice([2, 3])
    pre = [t for l in lines[:cut] for t in l]
    suf = [t for l in lines[cut + 1:] for t in l]
    mid = lines[cut]
    toks = ["<pre>"] + pre + ["<suf>"] + suf + ["<mid>"] + mid + ["<eot>"]
    ids = [stoi[t] for t in toks]
    return ids, len(ids) - len(mid) - 1


def make_batch(n):
    rows, starts = zip(*[fim_example() for _ in range(n)])
    out = torch.full((n, CTX), PAD)
    for i, r in enumerate(rows):
        out[i, :len(r)] = torch.tensor(r)
    return out, starts


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        mask = torch.triu(torch.ones(CTX, CTX), diagonal=1).bool()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~self.mask[:t, :t])
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = CausalAttention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class CodeLM(nn.Module):
    def __init__(self, dim=64, heads=4, depth=3):
        super().__init__()
        self.tok = nn.Embedding(len(itos), dim)
        self.pos = nn.Embedding(CTX, dim)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, len(itos), bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.05)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.head(self.norm(self.layers(h)))


@torch.no_grad()
def infill(model, n=100):
    model.eval()
    ok = 0
    for _ in range(n):
        ids, start = fim_example()
        cur = torch.tensor([ids[:start]])
        while cur.size(1) < CTX and cur[0, -1] != EOT:
            nxt = model(cur)[:, -1].argmax(-1, keepdim=True)
            cur = torch.cat([cur, nxt], 1)
        ok += cur[0].tolist() == ids
    model.train()
    return ok / n


model = CodeLM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
STEPS = 250
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=STEPS, pct_start=0.1)
for step in range(STEPS):
    batch, _ = make_batch(24)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, len(itos)), batch[:, 1:].reshape(-1), ignore_index=PAD)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 50 == 0 or step == STEPS - 1:
        print(f"step {step:4d} | loss {loss.item():.4f}")
print(f"infill exact match: {infill(model):.3f}")
