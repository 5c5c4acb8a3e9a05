import math
import random

import torch
import torch.nn as nn

SEED = 7
random.seed(SEED)
torch.manual_seed(SEED)

PAD, BOS, EOS, FIRST = 0, 1, 2, 3
N_SYM = 10
VOCAB = FIRST + N_SYM
MIN_LEN, MAX_LEN = 3, 8
BATCH, STEPS = 32, 400


def sample_batch(n):
    src = torch.full((n, MAX_LEN), PAD)
    tgt = torch.full((n, MAX_LEN + 2), PAD)
    for r in range(n):
        length = random.randint(MIN_LEN, MAX_LEN)
        seq = [random.randint(FIRST, VOCAB - 1) for _ in range(length)]
        src[r, :length] = torch.tensor(seq)
        tgt[r, : length + 2] = torch.tensor([BOS] + seq[::-1] + [EOS])
    return src, tgt


class SinusoidalPositions(nn.Module):
    def __init__(self, d, max_len=64):
        super().__init__()
        pos = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(max_len, d)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class Reverser(nn.Module):
    def __init__(self, d=48, heads=4, layers=1):
        super().__init__()
        self.d = d
        self.embed = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = SinusoidalPositions(d)
        nn.init.normal_(self.embed.weight, std=d ** -0.5)
        kw = dict(dim_feedforward=4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, heads, **kw), layers,
                                             norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d, heads, **kw), layers, norm=nn.LayerNorm(d))
        self.out = nn.Linear(d, VOCAB)

    def _embed(self, ids):
        return self.pos(self.embed(ids) * math.sqrt(self.d))

    def encode(self, src):
        return self.encoder(self._embed(src), src_key_padding_mask=src.eq(PAD))

    def decode(self, tgt_in, memory, src):
        t = tgt_in.size(1)
        causal = torch.ones(t, t, dtype=torch.bool).triu(1)
        h = self.decoder(self._embed(tgt_in), memory, tgt_mask=causal,
                         tgt_key_padding_mask=tgt_in.eq(PAD),
                         memory_key_padding_mask=src.eq(PAD))
        return self.out(h)

    def forward(self, src, tgt_in):
        return self.decode(tgt_in, self.encode(src), src)

    @torch.no_grad()
    def greedy(self, src):
        memory = self.encode(src)
        ys = torch.full((src.size(0), 1), BOS)
        done = torch.zeros(src.size(0), dtype=torch.bool)
        for _ in range(MAX_LEN + 1):
            nxt = self.decode(ys, memory, src)[:, -1].argmax(-1)
            nxt = nxt.masked_fill(done, PAD)
            ys = torch.cat([ys, nxt[:, None]], 1)
            done |= nxt.eq(EOS)
            if done.all():
                break
        return ys


model = Reverser()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / 40, 1.0) * (1.0 if s < 250 else max(0.05, (STEPS - s) / (STEPS - 250))))
loss_fn = nn.CrossEntropyLoss(ignore_index=PAD)
val_src, val_tgt = sample_batch(100)


def exact_match():
    model.eval()
    pred = model.greedy(val_src)
    full = torch.full_like(val_tgt, PAD)
    full[:, : pred.size(1)] = pred[:, : full.size(1)]
    model.train()
    return (full == val_tgt).all(1).float().mean().item()


model.train()
for step in range(1, STEPS + 1):
    src, tgt = sample_batch(BATCH)
    logits = model(src, tgt[:, :-1])
    loss = loss_fn(logits.reshape(-1, VOCAB), tgt[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step == 1 or step % 80 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}  exact match (greedy) {exact_match():.3f}")
