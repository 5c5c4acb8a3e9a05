import math, time
import torch
import torch.nn.functional as F

torch.manual_seed(21)
torch.set_num_threads(1)

AA, C, L, D, HEADS, LAYERS = 20, 3, 48, 64, 4, 2
PAD = AA


def sample_protein(g, pref):
    """segments of helix / strand / coil; helices carry a period-4 pattern, strands alternate"""
    seq, ss = [], []
    n = int(torch.randint(30, L + 1, (1,), generator=g))
    while len(seq) < n:
        s = int(torch.randint(0, 3, (1,), generator=g))
        ln = int(torch.randint(5, 14, (1,), generator=g))
        phase = int(torch.randint(0, 4, (1,), generator=g))
        for j in range(ln):
            p = pref[s, (j + phase) % (4 if s == 0 else 2 if s == 1 else 1)]
            seq.append(int(torch.multinomial(p, 1, generator=g)))
            ss.append(s)
    seq, ss = seq[:n], ss[:n]
    return seq + [PAD] * (L - n), ss + [-100] * (L - n)


def build(n, seed):
    g = torch.Generator().manual_seed(seed)
    gp = torch.Generator().manual_seed(77)
    pref = torch.softmax(1.6 * torch.randn(3, 4, AA, generator=gp), -1)
    rows = [sample_protein(g, pref) for _ in range(n)]
    return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


def init():
    p = {}
    lin = lambda i, o: (torch.randn(i, o) / math.sqrt(i)).requires_grad_()
    p["emb"] = (torch.randn(AA + 1, D) * 0.5).requires_grad_()
    p["pos"] = (torch.randn(L, D) * 0.1).requires_grad_()
    p["rel"] = torch.zeros(LAYERS, HEADS, 2 * L - 1, requires_grad=True)
    for l in range(LAYERS):
        p[f"qkv{l}"], p[f"o{l}"] = lin(D, 3 * D), lin(D, D)
        p[f"w1{l}"], p[f"w2{l}"] = lin(D, 2 * D), lin(2 * D, D)
        for k in ("a", "b"):
            p[f"g{k}{l}"] = torch.ones(D, requires_grad=True)
    p["out"] = (torch.randn(D, C) * 0.05).requires_grad_()
    p["outb"] = torch.zeros(C, requires_grad=True)
    return p


def rms(x, g):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * g


REL = (torch.arange(L)[:, None] - torch.arange(L)[None]) + L - 1


def forward(p, tok):
    B = tok.shape[0]
    keep = (tok != PAD)[:, None, None, :]
    x = p["emb"][tok] + p["pos"]
    for l in range(LAYERS):
        h = rms(x, p[f"ga{l}"]) @ p[f"qkv{l}"]
        q, k, v = (t.view(B, L, HEADS, D // HEADS).transpose(1, 2) for t in h.chunk(3, -1))
        s = q @ k.transpose(-1, -2) / math.sqrt(D // HEADS) + p["rel"][l][:, REL]
        a = s.masked_fill(~keep, float("-inf")).softmax(-1)
        x = x + (a @ v).transpose(1, 2).reshape(B, L, D) @ p[f"o{l}"]
        x = x + F.gelu(rms(x, p[f"gb{l}"]) @ p[f"w1{l}"]) @ p[f"w2{l}"]
    return x @ p["out"] + p["outb"]


def loss_fn(logits, labels):
    B, L, C = logits.shape
    return F.cross_entropy(logits.view(B, C, L), labels, ignore_index=-100)


def accuracy(logits, labels):
    m = labels != -100
    return (logits.argmax(-1)[m] == labels[m]).float().mean().item()


params = init()
xtr, ytr = build(1200, 0)
xva, yva = build(150, 1)
opt = torch.optim.Adam(params.values(), lr=2e-3, betas=(0.9, 0.98))
t0 = time.time()
for step in range(301):
    i = torch.randint(0, len(xtr), (32,))
    loss = loss_fn(forward(params, xtr[i]), ytr[i])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
    opt.step()
    opt.zero_grad()
    if step % 30 == 0:
        print(f"[{step:4d}] loss={loss.item():.4f} t={time.time() - t0:.1f}s")
    if step % 100 == 0 and step:
        with torch.no_grad():
            lv = forward(params, xva)
        print(f"       val loss={loss_fn(lv, yva).item():.4f} Q3={accuracy(lv, yva):.3f}")
