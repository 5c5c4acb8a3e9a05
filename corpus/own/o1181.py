import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)

WORDS, CLS, SEP, MASK, PAD = 40, 40, 41, 42, 43
VOCAB, MAXLEN = 44, 50
succ = torch.cat([torch.randperm(WORDS // 4)[:, None] * 4 + t for t in range(4)], 1).flatten()


def sentence(length, topic, start):
    out = [start]
    for _ in range(length - 1):
        if torch.rand(()) < 0.8:
            out.append(int(succ[out[-1]]))
        else:
            out.append(int(torch.randint(WORDS // 4, ()) * 4 + topic))
    return out


def make_pairs(n):
    ids = torch.full((n, MAXLEN), PAD)
    seg = torch.zeros(n, MAXLEN, dtype=torch.long)
    nsp = torch.randint(2, (n,))
    for i in range(n):
        ta = int(torch.randint(4, ()))
        a = sentence(int(torch.randint(8, 23, ())), ta, int(torch.randint(WORDS // 4, ())) * 4 + ta)
        tb = ta if nsp[i] else (ta + int(torch.randint(1, 4, ()))) % 4
        start = int(succ[a[-1]]) if nsp[i] else int(torch.randint(WORDS // 4, ())) * 4 + tb
        b = sentence(int(torch.randint(8, 23, ())), tb, start)
        row = [CLS] + a + [SEP] + b + [SEP]
        ids[i, : len(row)] = torch.tensor(row)
        seg[i, len(a) + 2 : len(row)] = 1
    return ids, seg, nsp


def mask_tokens(ids):
    labels = ids.clone()
    special = ids >= WORDS
    chosen = (torch.rand(ids.shape) < 0.15) & ~special
    labels[~chosen] = -100
    ids = ids.clone()
    r = torch.rand(ids.shape)
    ids[chosen & (r < 0.8)] = MASK
    swap = chosen & (r >= 0.8) & (r < 0.9)
    ids[swap] = torch.randint(WORDS, ids.shape)[swap]
    return ids, labels


class Bert(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.seg, self.pos = (
            nn.Embedding(VOCAB, d),
            nn.Embedding(2, d),
            nn.Embedding(MAXLEN, d),
        )
        for e in (self.tok, self.seg, self.pos):
            nn.init.normal_(e.weight, std=0.05)
        self.ln = nn.LayerNorm(d)
        self.drop = nn.Dropout(0.05)
        layer = nn.TransformerEncoderLayer(
            d, 4, 4 * d, dropout=0.05, activation="gelu", batch_first=True
        )
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        self.pool = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 2))

    def forward(self, ids, seg):
        x = self.tok(ids) + self.seg(seg) + self.pos(torch.arange(ids.shape[1]))
        x = self.enc(self.drop(self.ln(x)), src_key_padding_mask=ids == PAD)
        return F.linear(self.transform(x), self.tok.weight, self.bias), self.pool(x[:, 0])


train, valid = make_pairs(2400), make_pairs(300)
model = Bert()
params = [(n, p) for n, p in model.named_parameters()]
opt = torch.optim.AdamW(
    [
        {"params": [p for n, p in params if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for n, p in params if p.dim() <= 1], "weight_decay": 0.0},
    ],
    lr=2e-3,
)
steps, step = 450, 0
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda i: min((i + 1) / 60, max(0.0, (steps - i) / (steps - 60)))
)
while step < steps:
    model.train()
    for idx in torch.randperm(len(train[0])).split(24):
        ids, labels = mask_tokens(train[0][idx])
        lm, cls = model(ids, train[1][idx])
        mlm = F.cross_entropy(lm.flatten(0, 1), labels.flatten())
        nsp = F.cross_entropy(cls, train[2][idx])
        loss = mlm + nsp
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        step += 1
        if step % 25 == 0:
            print(
                f"step {step} loss {loss.item():.4f} mlm {mlm.item():.4f} nsp {nsp.item():.4f}",
                flush=True,
            )
        if step == steps:
            break
    model.eval()
    with torch.no_grad():
        ids, labels = mask_tokens(valid[0])
        lm, cls = model(ids, valid[1])
        keep = labels >= 0
        acc = (lm.argmax(-1) == labels)[keep].float().mean()
        print(
            f"valid mlm {F.cross_entropy(lm[keep], labels[keep]).item():.4f} acc {acc:.3f} "
            f"nsp acc {(cls.argmax(1) == valid[2]).float().mean():.3f}",
            flush=True,
        )
