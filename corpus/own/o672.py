import math

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(9)

CHARS = "0123456789+=."
ID = {c: i for i, c in enumerate(CHARS)}
DIGITS = 2
SEQ = 3 * DIGITS + 4
D, H, L = 64, 4, 2


def make_params():
    p = {"tok": torch.randn(len(CHARS), D) * 0.1, "pos": torch.randn(SEQ, D) * 0.1}
    for i in range(L):
        p[f"{i}.qkv"] = torch.randn(D, 3 * D) / math.sqrt(D)
        p[f"{i}.o"] = torch.randn(D, D) / math.sqrt(D) * 0.5
        p[f"{i}.up"] = torch.randn(D, 4 * D) / math.sqrt(D)
        p[f"{i}.down"] = torch.randn(4 * D, D) / math.sqrt(4 * D) * 0.5
        p[f"{i}.g1"], p[f"{i}.g2"] = torch.ones(D), torch.ones(D)
    p["gf"] = torch.ones(D)
    p["out"] = torch.randn(D, len(CHARS)) / math.sqrt(D)
    return {k: v.requires_grad_() for k, v in p.items()}


def rms(x, g):
    return g * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def forward(p, ids):
    B, T = ids.shape
    x = p["tok"][ids] + p["pos"][:T]
    for i in range(L):
        q, k, v = (rms(x, p[f"{i}.g1"]) @ p[f"{i}.qkv"]).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + a.transpose(1, 2).reshape(B, T, D) @ p[f"{i}.o"]
        x = x + F.gelu(rms(x, p[f"{i}.g2"]) @ p[f"{i}.up"]) @ p[f"{i}.down"]
    return rms(x, p["gf"]) @ p["out"]


def problems(n, gen):
    a = torch.randint(0, 10 ** DIGITS, (n,), generator=gen).tolist()
    b = torch.randint(0, 10 ** DIGITS, (n,), generator=gen).tolist()
    rows = []
    for u, v in zip(a, b):
        s = f"{u:0{DIGITS}d}+{v:0{DIGITS}d}=" + f"{u + v:0{DIGITS + 1}d}"[::-1] + "."
        rows.append([ID[c] for c in s])
    t = torch.tensor(rows)
    return t[:, :-1], t[:, 1:]


ANSWER = slice(2 * DIGITS + 1, None)


def answer_loss(p, x, y):
    return F.cross_entropy(forward(p, x)[:, ANSWER].flatten(0, 1), y[:, ANSWER].flatten())


UPDATES, ACCUM, MICRO = 300, 4, 32
PEAK, WARMUP = 4e-3, 20


def lr_factor(n):
    if n < WARMUP:
        return (n + 1) / WARMUP
    return max(0.0, (UPDATES - n) / (UPDATES - WARMUP))


params = make_params()
opt = torch.optim.AdamW(params.values(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0)
gen = torch.Generator().manual_seed(10)

running = 0.0
for micro in range(UPDATES * ACCUM):
    loss = answer_loss(params, *problems(MICRO, gen))
    (loss / ACCUM).backward()
    running += loss.item()
    if (micro + 1) % ACCUM == 0:
        torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        for group in opt.param_groups:
            group["lr"] = PEAK * lr_factor(micro)
        opt.step()
        opt.zero_grad()
    if (micro + 1) % (30 * ACCUM) == 0:
        print(f"update {(micro + 1) // ACCUM:4d}  loss {running / (30 * ACCUM):.4f}")
        running = 0.0

with torch.no_grad():
    x, y = problems(512, gen)
    pred = forward(params, x).argmax(-1)
    print(f"test loss {answer_loss(params, x, y).item():.4f}  "
          f"sums right {(pred[:, ANSWER] == y[:, ANSWER]).all(1).float().mean().item():.3f}")
