import re

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(21)

STATE_DTYPE = torch.float16
SEQ, BATCH, STEPS, LR = 64, 16, 200, 1e-3

text = re.sub(r"[^a-z ]+", " ", " ".join(topics[k] for k in sorted(topics)).lower())
text = re.sub(r" +", " ", text)[:300_000]
PAD, MASK = 0, 1
stoi = {c: i + 2 for i, c in enumerate(sorted(set(text)))}
VOCAB = len(stoi) + 2
data = torch.tensor([stoi[c] for c in text])
train, valid = data[:-20_000], data[-20_000:]


class Encoder(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d)
        self.pos = nn.Embedding(SEQ, d)
        self.mix = nn.Conv1d(d, d, 5, padding=2)
        layer = nn.TransformerEncoderLayer(d, heads, 4 * d, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        h = self.tok(ids) + self.pos.weight
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.head(self.enc(h))


class CompactAdam(torch.optim.Optimizer):

    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-6):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"] = 0
                    st["m"] = torch.zeros_like(p, dtype=STATE_DTYPE)
                    st["v"] = torch.zeros_like(p, dtype=STATE_DTYPE)
                st["t"] += 1
                m = b1 * st["m"].float() + (1 - b1) * p.grad
                v = b2 * st["v"].float() + (1 - b2) * p.grad.square()
                st["m"], st["v"] = m.to(STATE_DTYPE), v.to(STATE_DTYPE)
                m_hat = st["m"].float() / (1 - b1 ** st["t"])
                v_hat = st["v"].float() / (1 - b2 ** st["t"])
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["eps"]))


def corrupt(ids, gen):
    u = torch.rand(ids.shape, generator=gen)
    chosen = u < 0.15
    labels = ids.masked_fill(~chosen, -100)
    out = ids.masked_fill(u < 0.12, MASK)
    rand = torch.randint(2, VOCAB, ids.shape, generator=gen)
    return torch.where((u >= 0.12) & (u < 0.135), rand, out), labels


def get_batch(src, gen, n=BATCH):
    i = torch.randint(0, len(src) - SEQ, (n, 1), generator=gen) + torch.arange(SEQ)
    return corrupt(src[i], gen)


def mlm_loss(model, ids, labels):
    return F.cross_entropy(model(ids).float().flatten(0, 1), labels.flatten(), ignore_index=-100)


gen = torch.Generator().manual_seed(4)
model = Encoder()
opt = CompactAdam(model.parameters(), lr=LR)
warmup = 20
avg = None
for step in range(STEPS):
    for grp in opt.param_groups:
        grp["lr"] = LR * min(1, (step + 1) / warmup)
    loss = mlm_loss(model, *get_batch(train, gen))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    avg = loss.item() if avg is None else 0.95 * avg + 0.05 * loss.item()
    if (step + 1) % 20 == 0:
        print(f"step {step + 1:4d}  mlm loss {avg:.4f}")

with torch.no_grad():
    ids, labels = get_batch(valid, gen, 128)
    logits = model(ids).float()
    keep = labels != -100
    print(f"valid loss {F.cross_entropy(logits[keep], labels[keep]).item():.4f}  "
          f"accuracy {(logits.argmax(-1)[keep] == labels[keep]).float().mean().item():.3f}")
