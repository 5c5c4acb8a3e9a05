import collections
import re

import torch
import torch.nn as nn
import torch.nn.functional as F
import pydoc_data.topics as pt

torch.manual_seed(3)

PAD, CLS, SEP, MASK, UNK = range(5)
N_SPECIAL = 5
VOCAB, LEN, D = 400, 32, 64
BATCH, STEPS = 16, 350
IGNORE = -100


def build_corpus():
    sentences = {}
    for text in pt.topics.values():
        for s in re.split(r"(?<=[.!?])\s+|\n\n+", text):
            w = re.findall(r"[a-z]+|\d|[^\w\s]", s.lower())
            if len(w) >= 6:
                sentences[tuple(w)] = None
    freq = collections.Counter(w for s in sentences for w in s)
    index = {w: i + N_SPECIAL for i, (w, _) in enumerate(freq.most_common(VOCAB - N_SPECIAL))}
    rows = torch.full((len(sentences), LEN), PAD)
    for r, s in enumerate(sentences):
        ids = [CLS] + [index.get(w, UNK) for w in s[: LEN - 2]] + [SEP]
        rows[r, : len(ids)] = torch.tensor(ids)
    return rows[torch.randperm(len(rows))]


def corrupt(ids, generator=None, p=0.15):
    rand = lambda: torch.rand(ids.shape, generator=generator)
    chosen = (rand() < p) & (ids > UNK)
    labels = ids.masked_fill(~chosen, IGNORE)
    u = rand()
    out = ids.clone()
    out[chosen & (u < 0.8)] = MASK
    swap = chosen & (u >= 0.8) & (u < 0.9)
    noise = torch.randint(N_SPECIAL, VOCAB, ids.shape, generator=generator)
    out = torch.where(swap, noise, out)
    return out, labels


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, D, padding_idx=PAD)
        self.position = nn.Embedding(LEN, D)
        self.norm = nn.LayerNorm(D)
        self.drop = nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D))
        self.decoder_bias = nn.Parameter(torch.zeros(VOCAB))
        nn.init.normal_(self.word.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        with torch.no_grad():
            self.word.weight[PAD].zero_()

    def forward(self, ids):
        x = self.word(ids) + self.position.weight[: ids.size(1)]
        x = self.encoder(self.drop(self.norm(x)), src_key_padding_mask=ids == PAD)
        return self.transform(x) @ self.word.weight.t() + self.decoder_bias


corpus = build_corpus()
n_val = 200
val, train = corpus[:n_val], corpus[n_val:]
val_in, val_lab = corrupt(val, torch.Generator().manual_seed(0))
print(f"{len(train)} training sentences, {len(val)} validation sentences")

model = Bert()
no_decay = [p for n, p in model.named_parameters() if p.ndim < 2]
with_decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
opt = torch.optim.AdamW([{"params": with_decay, "weight_decay": 0.01},
                         {"params": no_decay, "weight_decay": 0.0}], lr=2.5e-3)
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: (s + 1) / 50 if s < 50 else max(0.0, (STEPS - s) / (STEPS - 50)))


@torch.no_grad()
def validate():
    model.eval()
    logits = model(val_in)
    keep = val_lab != IGNORE
    loss = F.cross_entropy(logits[keep], val_lab[keep]).item()
    acc = (logits[keep].argmax(-1) == val_lab[keep]).float().mean().item()
    model.train()
    return loss, acc


step, running = 0, None
while step < STEPS:
    for rows in torch.randperm(len(train)).split(BATCH):
        if step == STEPS:
            break
        batch = train[rows]
        batch = batch[:, : int((batch != PAD).sum(1).max())]
        inputs, labels = corrupt(batch)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0 or step == STEPS - 1:
            vl, va = validate()
            print(f"step {step:4d}  mlm loss (smoothed) {running:.3f}  val loss {vl:.3f}  val acc {va:.3f}")
        step += 1
