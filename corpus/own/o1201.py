import math
import random
import time
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

VOCAB = ["_", "^", "$"] + list("0123456789x+*-")
ID = {c: i for i, c in enumerate(VOCAB)}
PAD, BOS, EOS = (0, 1, 2)
settings = dict(
    d=64,
    heads=4,
    enc=1,
    dec=2,
    ff=128,
    micro_batch=24,
    accumulate=4,
    epochs=3,
    per_epoch=7200,
    lr=0.003,
    warmup=15,
)


def polynomial(rng):
    powers = sorted(rng.sample(range(1, 6), rng.randint(1, 2)), reverse=True)
    src, tgt = ("", "")
    for p in powers:
        c, sign = (rng.randint(1, 9), rng.choice("+-"))
        src += f"{sign}{c}*x{p}"
        tgt += f"{sign}{c * p}" + (f"*x{p - 1}" if p > 1 else "")
    return (src, tgt)


class Polynomials(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = [polynomial(rng) for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        s, t = self.items[i]
        return (torch.tensor([ID[c] for c in s]), torch.tensor([BOS] + [ID[c] for c in t] + [EOS]))


def collate(rows):
    return (
        pad_sequence([r[0] for r in rows], batch_first=True),
        pad_sequence([r[1] for r in rows], batch_first=True),
    )


class Seq2Seq(nn.Module):
    def __init__(self, d, heads, enc, dec, ff):
        super().__init__()
        self.src_emb = nn.Embedding(len(VOCAB), d, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(len(VOCAB), d, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(40, d) * 0.05)
        self.core = nn.Transformer(
            d, heads, enc, dec, ff, dropout=0.0, batch_first=True, norm_first=True
        )
        self.out = nn.Linear(d, len(VOCAB))

    def encode(self, src):
        return self.core.encoder(
            self.src_emb(src) + self.pos[: src.size(1)], src_key_padding_mask=src == PAD
        )

    def decode(self, memory, src, tgt):
        T = tgt.size(1)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        h = self.core.decoder(
            self.tgt_emb(tgt) + self.pos[:T],
            memory,
            tgt_mask=future,
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=src == PAD,
        )
        return self.out(h)


def lr_at(it, total, peak, warmup):
    if it < warmup:
        return peak * (it + 1) / warmup
    frac = min(1.0, (it - warmup) / max(1, total - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * frac))


@torch.no_grad()
def solved(model, data, n=400):
    model.eval()
    src, tgt = collate([data[i] for i in range(n)])
    memory = model.encode(src)
    out = torch.full((n, 1), BOS)
    done = torch.zeros(n, dtype=torch.bool)
    for _ in range(tgt.size(1) - 1):
        nxt = model.decode(memory, src, out)[:, -1].argmax(-1).masked_fill(done, PAD)
        done |= nxt == EOS
        out = torch.cat([out, nxt[:, None]], dim=1)
    model.train()
    return (out == tgt).all(dim=1).float().mean().item()


def train(cfg):
    torch.manual_seed(21)
    data, held_out = (Polynomials(cfg["per_epoch"], seed=1), Polynomials(400, seed=2))
    loader = torch.utils.data.DataLoader(
        data, cfg["micro_batch"], shuffle=True, drop_last=True, collate_fn=collate
    )
    model = Seq2Seq(cfg["d"], cfg["heads"], cfg["enc"], cfg["dec"], cfg["ff"])
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], betas=(0.9, 0.98))
    loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)
    accum = cfg["accumulate"]
    total_updates = cfg["epochs"] * len(loader) // accum
    print(f"{total_updates} updates of {accum} x {cfg['micro_batch']} examples")
    it, running, t0 = (0, 0.0, time.time())
    for epoch in range(cfg["epochs"]):
        for src, tgt in loader:
            for g in opt.param_groups:
                g["lr"] = lr_at(it // accum, total_updates, cfg["lr"], cfg["warmup"])
            logits = model.decode(model.encode(src), src, tgt[:, :-1])
            loss = loss_fn(logits.transpose(1, 2), tgt[:, 1:])
            (loss / accum).backward()
            running += loss.item() / accum
            it += 1
            if it % accum == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=True)
                if it // accum % 20 == 0 or it == accum:
                    print(f"update {it // accum:4d}  loss {running:.4f}  {time.time() - t0:.1f}s")
                running = 0.0
        print(f"epoch {epoch}: {solved(model, held_out):.3f} of the held-out problems solved")
    return model


if __name__ == "__main__":
    train(settings)
