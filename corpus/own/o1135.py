import math, random, time
import torch
import torch.nn as nn
import torch.nn.functional as F

SCALE = 14
BAR, BARS = 8, 4
T = BAR * BARS
VOCAB = SCALE + 1
START = SCALE
STEPS = [-2, -1, -1, 1, 1, 2, 4]


def tune(rng):
    def walk(p, n):
        bar = []
        for _ in range(n):
            q = p + rng.choice(STEPS)
            p = q if 0 <= q < SCALE else p - (q - p)
            p = max(0, min(SCALE - 1, p))
            bar.append(p)
        return bar
    a = walk(rng.randrange(4, 10), BAR)
    b = walk(a[-1], BAR)
    return [START] + a + a + b + a


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.register_buffer("mask", torch.triu(torch.ones(T + 1, T + 1, dtype=torch.bool), diagonal=1))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:t, :t])
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.attn, self.ff = Attn(d, h), nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
        self.ln1, self.ln2 = nn.RMSNorm(d), nn.RMSNorm(d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ff(self.ln2(x))


class TuneModel(nn.Module):
    def __init__(self, d=64, h=4, n=2):
        super().__init__()
        self.note, self.time = nn.Embedding(VOCAB, d), nn.Embedding(T + 1, d)
        nn.init.normal_(self.note.weight, std=0.3)
        nn.init.normal_(self.time.weight, std=0.3)
        self.layers = nn.ModuleList([Layer(d, h) for _ in range(n)])
        self.ln = nn.RMSNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, idx):
        x = self.note(idx) + self.time.weight[:idx.shape[1]]
        for l in self.layers:
            x = l(x)
        return self.head(self.ln(x))

    @torch.no_grad()
    def continue_tune(self, idx, n):
        for _ in range(n):
            logits = self(idx)[:, -1]
            idx = torch.cat([idx, logits.argmax(-1, keepdim=True)], 1)
        return idx


if __name__ == "__main__":
    torch.manual_seed(0)
    rng = random.Random(0)
    model = TuneModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    total = 450
    sch = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=total, pct_start=0.08)
    t0 = time.time()
    for i in range(total):
        seq = torch.tensor([tune(rng) for _ in range(32)])
        loss = F.cross_entropy(model(seq[:, :-1]).reshape(-1, VOCAB), seq[:, 1:].reshape(-1))
        loss.backward()
        opt.step(); sch.step(); opt.zero_grad()
        if i % 30 == 0:
            print(f"{i:>4} loss {loss.item():.4f}  {time.time() - t0:.1f}s", flush=True)
    model.eval()
    seq = torch.tensor([tune(rng) for _ in range(100)])
    cont = model.continue_tune(seq[:, :1 + BAR], BAR)
    match = (cont[:, 1 + BAR:] == seq[:, 1 + BAR:1 + 2 * BAR]).float().mean().item()
    print(f"final loss {loss.item():.4f}; repeat of the first bar when continuing: {match:.2f}")
    print("opening:", cont[0].tolist())
