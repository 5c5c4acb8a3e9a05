import math, random, time
import torch
from torch import nn, Tensor

torch.set_num_threads(1)
random.seed(2); torch.manual_seed(2)

PAD, BOS, EOS = 0, 1, 2
N_NOUN, N_ADJ, N_VERB = 14, 8, 10
nouns = list(range(3, 3 + N_NOUN)); adjs = list(range(17, 17 + N_ADJ)); verbs = list(range(25, 25 + N_VERB))
SRC_V = TGT_V = 36
perm = list(range(3, 35)); random.shuffle(perm)
lex = {w: perm[w - 3] for w in range(3, 35)}


def noun_phrase():
    a = random.sample(adjs, random.choice([0, 1, 2])); n = random.choice(nouns)
    return a + [n], [lex[n]] + [lex[x] for x in a]


def sentence():
    s1, t1 = noun_phrase(); s2, t2 = noun_phrase(); v = random.choice(verbs)
    return s1 + [v] + s2, t1 + t2 + [lex[v]]


def batchify(pairs):
    src = nn.utils.rnn.pad_sequence([torch.tensor(s + [EOS]) for s, _ in pairs], True, PAD)
    tgt = nn.utils.rnn.pad_sequence([torch.tensor([BOS] + t + [EOS]) for _, t in pairs], True, PAD)
    return src, tgt


class Seq2Seq(nn.Module):
    def __init__(self, d=64, h=4, n=2, ff=128, p=0.0):
        super().__init__()
        self.src_emb, self.tgt_emb = nn.Embedding(SRC_V, d, PAD), nn.Embedding(TGT_V, d, PAD)
        self.scale = math.sqrt(d)
        pos = torch.arange(32)[:, None]; div = torch.exp(torch.arange(0, d, 2) * -(math.log(1e4) / d))
        pe = torch.zeros(32, d); pe[:, 0::2] = (pos * div).sin(); pe[:, 1::2] = (pos * div).cos()
        self.register_buffer("pe", pe)
        self.core = nn.Transformer(d, h, n, n, ff, p, batch_first=True, norm_first=True)
        self.gen = nn.Linear(d, TGT_V)
        for w in self.parameters():
            if w.dim() > 1:
                nn.init.xavier_uniform_(w)

    def embed(self, e, x):
        return e(x) * self.scale + self.pe[: x.size(1)]

    def forward(self, src: Tensor, tgt: Tensor):
        causal = torch.triu(torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool), 1)
        pad = src == PAD
        h = self.core(self.embed(self.src_emb, src), self.embed(self.tgt_emb, tgt), tgt_mask=causal,
                      src_key_padding_mask=pad, memory_key_padding_mask=pad, tgt_key_padding_mask=tgt == PAD)
        return self.gen(h)


@torch.no_grad()
def exact_match(model, pairs):
    model.eval()
    src, tgt = batchify(pairs)
    out = torch.full((len(src), 1), BOS)
    for _ in range(tgt.size(1) - 1):
        out = torch.cat([out, model(src, out)[:, -1].argmax(-1, keepdim=True)], 1)
    gold = tgt
    ok = ((out == gold) | (gold == PAD)).all(1).float().mean().item()
    model.train()
    return ok


def inv_sqrt(warmup):
    return lambda s: min((s + 1) / warmup, math.sqrt(warmup / (s + 1)))


train = [sentence() for _ in range(3200)]
valid = [sentence() for _ in range(100)]
model = Seq2Seq()
opt = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, inv_sqrt(warmup=100))
crit = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
t0 = time.time()
for epoch in range(1, 6):
    random.shuffle(train)
    total = seen = 0
    for i in range(0, len(train), 40):
        src, tgt = batchify(train[i:i + 40])
        logits = model(src, tgt[:, :-1])
        loss = crit(logits.reshape(-1, TGT_V), tgt[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total += loss.item(); seen += 1
        if (i // 40) % 40 == 0:
            print(f"  epoch {epoch} batch {i // 40:3d} loss {loss.item():.4f}")
    sched.step()
    print(f"epoch {epoch} train loss {total / seen:.4f} exact match {exact_match(model, valid):.3f} "
          f"({time.time() - t0:.0f}s)")
