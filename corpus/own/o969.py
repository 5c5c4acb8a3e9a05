import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

SEED = 77
np_rng = np.random.RandomState(SEED)
torch.manual_seed(SEED)

N_CLASS, VOCAB, MAXLEN = 6, 240, 24
CLS, PAD = 1, 0

class_words = np_rng.permutation(np.arange(10, VOCAB))[: N_CLASS * 20].reshape(N_CLASS, 20)


def sample(n):
    X = np.zeros((n, MAXLEN), dtype=np.int64)
    y = np_rng.randint(N_CLASS, size=n)
    for i in range(n):
        length = np_rng.randint(12, MAXLEN - 1)
        toks = np_rng.randint(10, VOCAB, size=length)
        topical = np_rng.rand(length) < 0.3
        toks[topical] = np_rng.choice(class_words[y[i]], size=topical.sum())
        X[i, 0] = CLS
        X[i, 1 : 1 + length] = toks
    return torch.from_numpy(X), torch.from_numpy(y)


Xtr, ytr = sample(4000)
Xva, yva = sample(1000)


class Encoder(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(MAXLEN, d) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, heads, 3 * d, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.cls = nn.Linear(d, N_CLASS)

    def forward(self, x):
        pad = x.eq(PAD)
        h = self.tok(x) + self.pos
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=pad)
        return self.cls(self.norm(h[:, 0]))


class WeightAverage:
    """shadow copy of the parameters"""

    def __init__(self, model, decay=0.99, dtype=torch.float32):
        self.decay = decay
        self.dtype = dtype
        self.shadow = {k: p.detach().to(dtype, copy=True) for k, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for k, p in model.named_parameters():
            self.shadow[k].lerp_(p.to(self.dtype), 1 - self.decay)

    def state(self):
        return {k: v.float() for k, v in self.shadow.items()}


@torch.no_grad()
def evaluate(model, weights):
    model.eval()
    logits = torch.cat([functional_call(model, weights, (xb,)) for xb in Xva.split(250)])
    model.train()
    return F.cross_entropy(logits, yva).item(), (logits.argmax(-1) == yva).float().mean().item()


model = Encoder()
avg = WeightAverage(model, decay=0.995, dtype=torch.bfloat16)
EPOCHS, BS, BASE_LR = 5, 50, 2e-3
total = EPOCHS * (len(Xtr) // BS)
opt = torch.optim.AdamW(model.parameters(), lr=BASE_LR, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=total)

step = 0
for epoch in range(EPOCHS):
    perm = torch.randperm(len(Xtr))
    for b in range(len(Xtr) // BS):
        idx = perm[b * BS : (b + 1) * BS]
        loss = F.cross_entropy(model(Xtr[idx]), ytr[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        avg.update(model)
        if step % 25 == 0:
            print(f"{step:4d}/{total} train loss {loss.item():.4f}")
        step += 1
    vl, va = evaluate(model, avg.state())
    print(f"epoch {epoch}: averaged weights, val loss {vl:.4f} val acc {va:.3f}")
