import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)

NOTES = 10
PAD, SOT, EOT = NOTES, NOTES + 1, NOTES + 2
VOCAB, MELS, FRAMES, MAXTOK = NOTES + 3, 24, 80, 9


def clips(n):
    mel = 0.3 * torch.randn(n, FRAMES, MELS)
    toks = torch.full((n, MAXTOK), PAD)
    bins = torch.arange(MELS).float()
    for i in range(n):
        count = int(torch.randint(2, 7, ()))
        notes = torch.randint(NOTES, (count,))
        at = int(torch.randint(0, 8, ()))
        for note in notes.tolist():
            span = int(torch.randint(7, 12, ()))
            f0 = 2 + note * 1.3
            spec = torch.exp(-((bins - f0) ** 2) / 1.0) + 0.5 * torch.exp(
                -((bins - f0 - 7) ** 2) / 1.0
            )
            env = torch.linspace(1.3, 0.6, span)
            mel[i, at : at + span] += 2 * (env[:, None] * spec)[: FRAMES - at]
            at += span + 1
        toks[i, : count + 2] = torch.tensor([SOT] + notes.tolist() + [EOT])
    return mel, toks


def sinusoids(length, d):
    inv = torch.exp(-math.log(10000) / (d // 2 - 1) * torch.arange(d // 2))
    t = torch.arange(length)[:, None] * inv[None]
    return torch.cat([t.sin(), t.cos()], 1)


class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.k = nn.Linear(d, d, bias=False)

    def forward(self, x, src=None, causal=False):
        src = x if src is None else src
        q, k, v = (
            f(z).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for f, z in ((self.q, x), (self.k, src), (self.v, src))
        )
        return self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    def __init__(self, d, h, cross):
        super().__init__()
        self.attn, self.n1 = Attn(d, h), nn.LayerNorm(d)
        self.cross = Attn(d, h) if cross else None
        self.nc = nn.LayerNorm(d) if cross else None
        self.mlp, self.n2 = (
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)),
            nn.LayerNorm(d),
        )

    def forward(self, x, src=None):
        x = x + self.attn(self.n1(x), causal=self.cross is not None)
        if self.cross is not None:
            x = x + self.cross(self.nc(x), src)
        return x + self.mlp(self.n2(x))


class Transcriber(nn.Module):
    def __init__(self, d=64, h=4):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(MELS, d, 3, padding=1), nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.register_buffer("sin", sinusoids(FRAMES // 2, d))
        self.enc = nn.ModuleList([Block(d, h, False) for _ in range(2)])
        self.ln_enc = nn.LayerNorm(d)
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(MAXTOK, d) * 0.02)
        nn.init.normal_(self.tok.weight, std=0.1)
        self.dec = nn.ModuleList([Block(d, h, True) for _ in range(2)])
        self.ln = nn.LayerNorm(d)

    def encode(self, mel):
        x = F.gelu(self.c2(F.gelu(self.c1(mel.transpose(1, 2))))).transpose(1, 2) + self.sin
        for b in self.enc:
            x = b(x)
        return self.ln_enc(x)

    def decode(self, ids, src):
        x = self.tok(ids) + self.pos[: ids.shape[1]]
        for b in self.dec:
            x = b(x, src)
        return self.ln(x) @ self.tok.weight.T


def spec_augment(mel):
    mel = mel.clone()
    f = int(torch.randint(MELS - 2, ()))
    mel[:, :, f : f + 2] = 0
    return mel


train, test = clips(2400), clips(200)
mean, std = train[0].mean(), train[0].std()
norm = lambda m: (m - mean) / std

model = Transcriber()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
steps, step = 450, 0
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min((i + 1) / 80, max(0.0, 1 - i / steps)))
while step < steps:
    model.train()
    for idx in torch.randperm(len(train[0]))[:2400].split(32):
        mel, ids = spec_augment(norm(train[0][idx])), train[1][idx]
        logits = model.decode(ids[:, :-1], model.encode(mel))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == steps:
            break
    model.eval()
    with torch.no_grad():
        src = model.encode(norm(test[0]))
        ids = torch.full((len(src), 1), SOT)
        done = torch.zeros(len(src), dtype=torch.bool)
        for _ in range(MAXTOK - 1):
            nxt = model.decode(ids, src)[:, -1].argmax(-1)
            nxt = torch.where(done, torch.full_like(nxt, PAD), nxt)
            done |= nxt == EOT
            ids = torch.cat([ids, nxt[:, None]], 1)
    print(f"step {step} exact transcripts {(ids == test[1]).all(1).float().mean():.3f}", flush=True)
