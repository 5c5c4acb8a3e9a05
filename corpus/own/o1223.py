import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(5)
torch.manual_seed(5)
torch.set_num_threads(1)
NOUNS = [f"n{i}" for i in range(40)]
VERBS = [f"v{i}" for i in range(20)]
ADJS = [f"a{i}" for i in range(8)]
SRC = ["<pad>", "<end>", "sg", "pl", "and"] + NOUNS + VERBS + ADJS
TGT = (
    ["<pad>", "<s>", "</s>", "ta"]
    + [n.upper() for n in NOUNS]
    + [v.upper() + e for v in VERBS for e in ("o", "im")]
    + [a.upper() for a in ADJS]
)
S = {w: i for i, w in enumerate(SRC)}
T = {w: i for i, w in enumerate(TGT)}


def noun_phrase():
    n, num = (random.choice(NOUNS), random.choice(["sg", "pl"]))
    a = random.choice(ADJS) if random.random() < 0.5 else None
    src = ([a] if a else []) + [n, num]
    tgt = [n.upper()] + ([a.upper()] if a else [])
    return (src, tgt, num)


def clause():
    s_src, s_tgt, num = noun_phrase()
    o_src, o_tgt, _ = noun_phrase()
    v = random.choice(VERBS)
    return (s_src + [v] + o_src, s_tgt + o_tgt + [v.upper() + ("o" if num == "sg" else "im")])


def pair():
    a, b = clause()
    if random.random() < 0.5:
        a2, b2 = clause()
        a, b = (a + ["and"] + a2, b2 + ["ta"] + b)
    return ([S[w] for w in a] + [S["<end>"]], [T["<s>"]] + [T[w] for w in b] + [T["</s>"]])


def pad(seqs):
    n = max(map(len, seqs))
    return torch.tensor([s + [0] * (n - len(s)) for s in seqs])


def batch(n):
    src, tgt = zip(*(pair() for _ in range(n)))
    return (pad(src), pad(tgt))


class AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, w, eps):
        h = x + residual
        rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(h, w, rstd)
        return (h * rstd * w, h)

    @staticmethod
    def backward(ctx, dy, dh):
        h, w, rstd = ctx.saved_tensors
        xhat = h * rstd
        g = dy * w
        dx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True)) + dh
        dw = (dy * xhat).flatten(0, -2).sum(0)
        return (dx, dx, dw, None)


class FusedNorm(nn.Module):
    def __init__(self, dim, eps=1e-06):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x, residual):
        return AddRMSNorm.apply(x, residual, self.weight, self.eps)


class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.kv, self.o = (nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d))

    def forward(self, x, mem, mask=None, causal=False):

        def split(t):
            return t.view(t.size(0), t.size(1), self.h, -1).transpose(1, 2)

        q = split(self.q(x))
        k, v = map(split, self.kv(mem).chunk(2, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.o(y.transpose(1, 2).flatten(2))


class MLP(nn.Sequential):
    def __init__(self, d):
        super().__init__(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))


class EncoderDecoder(nn.Module):
    def __init__(self, d=64, h=4, depth=3, maxlen=24):
        super().__init__()
        self.se, self.te = (nn.Embedding(len(SRC), d), nn.Embedding(len(TGT), d))
        self.sp, self.tp = (nn.Embedding(maxlen, d), nn.Embedding(maxlen, d))
        for e in (self.se, self.te, self.sp, self.tp):
            nn.init.normal_(e.weight, std=0.5)
        mk = lambda f, k: nn.ModuleList([f() for _ in range(k)])
        self.enc_att, self.enc_mlp = (mk(lambda: MHA(d, h), depth), mk(lambda: MLP(d), depth))
        self.dec_att, self.dec_cross, self.dec_mlp = (
            mk(lambda: MHA(d, h), depth),
            mk(lambda: MHA(d, h), depth),
            mk(lambda: MLP(d), depth),
        )
        self.enc_norm = mk(lambda: FusedNorm(d), 2 * depth + 1)
        self.dec_norm = mk(lambda: FusedNorm(d), 3 * depth + 1)
        self.out = nn.Linear(d, len(TGT))

    def encode(self, src):
        keep = (src != 0)[:, None, None, :]
        res, x = (self.se(src), self.sp(torch.arange(src.size(1))).expand(src.size(0), -1, -1))
        norms = iter(self.enc_norm)
        for att, mlp in zip(self.enc_att, self.enc_mlp):
            y, res = next(norms)(x, res)
            x = att(y, y, mask=keep)
            y, res = next(norms)(x, res)
            x = mlp(y)
        return (next(norms)(x, res)[0], keep)

    def decode(self, tgt, mem, keep):
        res, x = (self.te(tgt), self.tp(torch.arange(tgt.size(1))).expand(tgt.size(0), -1, -1))
        norms = iter(self.dec_norm)
        for att, cross, mlp in zip(self.dec_att, self.dec_cross, self.dec_mlp):
            y, res = next(norms)(x, res)
            x = att(y, y, causal=True)
            y, res = next(norms)(x, res)
            x = cross(y, mem, mask=keep)
            y, res = next(norms)(x, res)
            x = mlp(y)
        return self.out(next(norms)(x, res)[0])


@torch.no_grad()
def translate(model, src, steps=18):
    mem, keep = model.encode(src)
    out = torch.full((src.size(0), 1), T["<s>"])
    for _ in range(steps):
        out = torch.cat([out, model.decode(out, mem, keep)[:, -1].argmax(-1, keepdim=True)], 1)
    return out


def whole_sentence_accuracy(model, n=200):
    src, tgt = batch(n)
    hyp, end = (translate(model, src), T["</s>"])
    good = 0
    for h, t in zip(hyp.tolist(), tgt.tolist()):
        h = h[: h.index(end) + 1] if end in h else h
        good += h == [w for w in t if w]
    return good / n


model = EncoderDecoder()
STEPS, LR = (260, 0.002)
opt = torch.optim.Adam(model.parameters(), lr=LR, betas=(0.9, 0.98), eps=1e-09)
for step in range(1, STEPS + 1):
    for g in opt.param_groups:
        g["lr"] = LR * min(step / 60, 1 - max(0, step - 160) / 110)
    src, tgt = batch(24)
    mem, keep = model.encode(src)
    logits = model.decode(tgt[:, :-1], mem, keep)
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step == 1 or step % 40 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
print(f"sentences translated without an error: {whole_sentence_accuracy(model):.3f}")
