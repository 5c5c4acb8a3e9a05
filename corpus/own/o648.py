import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
BASE, SYMS = 3, 12
SRC_LEN, TGT_LEN = 14, 16


def make_pairs(n, gen):
    table = (torch.arange(SYMS) * 5 + 3) % SYMS
    out = []
    for _ in range(n):
        k = int(2 + (torch.rand(1, generator=gen).item() ** 3) * 11)
        s = torch.randint(0, SYMS, (k,), generator=gen)
        out.append((s + BASE, table[s.flip(0)] + BASE))
    return out


def collate(rows):
    b = len(rows)
    src = torch.full((b, SRC_LEN), PAD)
    dec = torch.full((b, TGT_LEN), PAD)
    lab = torch.full((b, TGT_LEN), PAD)
    for i, (s, t) in enumerate(rows):
        src[i, : len(s)] = s
        dec[i, 0] = BOS
        dec[i, 1 : len(t) + 1] = t
        lab[i, : len(t)] = t
        lab[i, len(t)] = EOS
    return {"input_ids": src, "decoder_input_ids": dec, "labels": lab}


class Translator(nn.Module):
    def __init__(self, dim=48, heads=4):
        super().__init__()
        v = BASE + SYMS
        self.dim = dim
        self.emb = nn.Embedding(v, dim)
        nn.init.normal_(self.emb.weight, std=dim ** -0.5)
        self.pos_e = nn.Parameter(torch.randn(SRC_LEN, dim) * 0.3)
        self.pos_d = nn.Parameter(torch.randn(TGT_LEN, dim) * 0.3)
        self.enc = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 96, 0.0, batch_first=True, norm_first=True) for _ in range(1)
        )
        self.dec = nn.ModuleList(
            nn.TransformerDecoderLayer(dim, heads, 96, 0.0, batch_first=True, norm_first=True) for _ in range(1)
        )
        self.ln_e = nn.LayerNorm(dim)
        self.ln_d = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, v)
        self.register_buffer("causal", torch.triu(torch.ones(TGT_LEN, TGT_LEN, dtype=torch.bool), 1))

    def forward(self, input_ids, decoder_input_ids, labels=None):
        pad = input_ids.eq(PAD)
        h = self.emb(input_ids) * math.sqrt(self.dim) + self.pos_e
        for b in self.enc:
            h = b(h, src_key_padding_mask=pad)
        h = self.ln_e(h)
        d = self.emb(decoder_input_ids) * math.sqrt(self.dim) + self.pos_d
        for b in self.dec:
            d = b(d, h, tgt_mask=self.causal, memory_key_padding_mask=pad)
        logits = self.proj(self.ln_d(d))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
        return loss, logits


class Trainer:
    def __init__(self, model, train, valid, steps=240, bs=20, lr=3e-3):
        self.model, self.train_rows, self.valid = model, train, valid
        self.steps, self.bs = steps, bs
        self.opt = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min((s + 1) / 30, max(0.05, 1 - s / steps))
        )
        self.gen = torch.Generator().manual_seed(5)

    def batches(self):
        while True:
            order = torch.randperm(len(self.train_rows), generator=self.gen).tolist()
            for i in range(0, len(order) - self.bs + 1, self.bs):
                yield collate([self.train_rows[j] for j in order[i : i + self.bs]])

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        loss, logits = self.model(**self.valid)
        self.model.train()
        hit = (logits.argmax(-1) == self.valid["labels"]).float().mean()
        return loss.item(), hit.item()

    def fit(self):
        self.model.train()
        for step, batch in zip(range(self.steps), self.batches()):
            loss, _ = self.model(**batch)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            if step % 25 == 0 or step == self.steps - 1:
                vl, va = self.evaluate()
                print(f"step {step:4d} train {loss.item():.4f} valid {vl:.4f} acc {va:.3f}")


if __name__ == "__main__":
    torch.manual_seed(3)
    g = torch.Generator().manual_seed(4)
    Trainer(Translator(), make_pairs(4000, g), collate(make_pairs(128, g))).fit()
