import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(4)
torch.manual_seed(4)

MONTHS = "january february march april may june july august september october november december".split()
DAYS = ("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
        "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth").split()
TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
UNITS = "one two three four five six seven eight nine".split()
WORDS = ["<pad>", "<bos>", "<eos>", "the", "of", "on", "in", "nineteen", "hundred", "and"] + MONTHS + DAYS + list(TENS) + UNITS + list("0123456789-")
ID = {w: i for i, w in enumerate(WORDS)}
PAD, BOS, EOS = 0, 1, 2


def example():
    d, m = random.randrange(20), random.randrange(12)
    tens, u = random.choice(list(TENS)), random.randrange(10)
    year = ["nineteen", tens] + ([UNITS[u - 1]] if u else [])
    style = random.randrange(3)
    if style == 0:
        src = ["the", DAYS[d], "of", MONTHS[m]] + year
    elif style == 1:
        src = ["on", MONTHS[m], "the", DAYS[d], "in"] + year
    else:
        src = ["in"] + year + ["on", "the", DAYS[d], "of", MONTHS[m]]
    tgt = list(f"19{TENS[tens] + u}-{m + 1:02d}-{d + 1:02d}")
    return [ID[w] for w in src] + [EOS], [ID[c] for c in tgt] + [EOS]


def pad(rows):
    return nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True, padding_value=PAD)


def batch(rows):
    src, tgt = pad([s for s, _ in rows]), pad([t for _, t in rows])
    dec_in = torch.cat([torch.full((len(rows), 1), BOS), tgt[:, :-1]], 1)
    return src, dec_in, tgt


class Seq2Seq(nn.Module):
    def __init__(self, vocab, d_model=128, heads=4, layers=2, max_len=16):
        super().__init__()
        self.d_model = d_model
        self.shared = nn.Embedding(vocab, d_model)
        self.enc_pos = nn.Embedding(max_len, d_model)
        self.dec_pos = nn.Embedding(max_len, d_model)
        kw = dict(dim_feedforward=2 * d_model, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(d_model, heads, **kw), layers,
                                             norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(d_model, heads, **kw), layers,
                                             norm=nn.LayerNorm(d_model))

    def embed(self, ids, pos):
        return self.shared(ids) + pos(torch.arange(ids.size(1)))

    def forward(self, src, dec_in):
        src_pad = src.eq(PAD)
        memory = self.encoder(self.embed(src, self.enc_pos), src_key_padding_mask=src_pad)
        n = dec_in.size(1)
        causal = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        h = self.decoder(self.embed(dec_in, self.dec_pos), memory, tgt_mask=causal, memory_key_padding_mask=src_pad)
        return F.linear(h, self.shared.weight)


def loss_fn(model, rows):
    src, dec_in, tgt = batch(rows)
    logits = model(src, dec_in)
    return F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD)


@torch.no_grad()
def translate(model, rows):
    src, _, _ = batch(rows)
    out = torch.full((len(rows), 1), BOS)
    for _ in range(11):
        out = torch.cat([out, model(src, out)[:, -1].argmax(-1, keepdim=True)], 1)
    return out[:, 1:]


train = [example() for _ in range(5000)]
valid = [example() for _ in range(200)]
model = Seq2Seq(len(WORDS))
steps, lr = 170, 1e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
for step in range(1, steps + 1):
    for g in optimizer.param_groups:
        g["lr"] = lr * min(step / 20, (steps + 1 - step) / (steps - 20))
    loss = loss_fn(model, random.sample(train, 32))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step == 1 or step % 20 == 0:
        print(f"step {step:3d} | loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    vl = loss_fn(model, valid).item()
pred = translate(model, valid)
hits = sum(p.tolist()[: len(t)] == t for p, (_, t) in zip(pred, valid))
print(f"valid loss {vl:.4f} exact match {hits / len(valid):.3f}")
