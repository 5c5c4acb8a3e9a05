import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)


class Meter:
    def __init__(self, momentum=0.9):
        self.momentum = momentum
        self.value = 0.0

    def update(self, x):
        self.value = self.momentum * self.value + (1 - self.momentum) * x


class Decoder(nn.Module):
    def __init__(self, vocab, width=64, ctx=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(ctx, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.05, activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        t = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.tok(ids) + self.pos.weight[:t]
        return self.head(self.body(h, mask=mask, is_causal=True))


class SpikeGuard:
    def __init__(self, ratio):
        self.ratio = ratio
        self.norm = Meter()
        self.skipped = 0

    def admit(self, norm):
        if norm < self.ratio * self.norm.value:
            self.norm.update(norm)
            return True
        self.skipped += 1
        return False


class Trainer:
    def __init__(self, model, data, lr=2e-3, bs=16, ctx=64):
        self.model, self.data, self.bs, self.ctx = model, data, bs, ctx
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.guard = SpikeGuard(ratio=4.0)
        self.log = []

    def sample(self):
        i = torch.randint(len(self.data) - self.ctx - 1, (self.bs,))
        block = torch.stack([self.data[j:j + self.ctx + 1] for j in i.tolist()])
        return block[:, :-1], block[:, 1:]

    def step(self):
        x, y = self.sample()
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        self.opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        if self.guard.admit(norm):
            self.opt.step()
        return {"loss": round(loss.item(), 4), "grad_norm": round(norm, 3)}

    def fit(self, steps):
        t0 = time.time()
        for s in range(steps):
            rec = self.step()
            self.log.append(rec)
            if s % 20 == 0 or s == steps - 1:
                print(json.dumps({"step": s, **rec, "sec": round(time.time() - t0, 1)}))


if __name__ == "__main__":
    torch.manual_seed(3)
    text = "".join(topics.values())
    vocab = sorted(set(text))
    ids = {c: i for i, c in enumerate(vocab)}
    data = torch.tensor([ids[c] for c in text])
    Trainer(Decoder(len(vocab)), data).fit(180)
