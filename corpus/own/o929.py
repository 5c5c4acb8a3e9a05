import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(61)
torch.manual_seed(61)
PAD, BOS, EOS, STAR = 0, 1, 2, 3
COMMON, OOV, D, SRC, TGT = 40, 12, 64, 20, 6
V = COMMON
EXT = COMMON + OOV


def article():
    n = random.randint(12, SRC)
    toks = [random.randrange(4, COMMON) if random.random() < 0.7 else COMMON + random.randrange(OOV) for _ in range(n)]
    marks = sorted(random.sample(range(0, n - 1, 2), 3))
    for m in marks:
        toks[m] = STAR
    summary = [toks[m + 1] for m in marks]
    return toks, [BOS] + summary + [EOS]


def collate(rows):
    s = max(len(a) for a, _ in rows)
    src = torch.tensor([a + [PAD] * (s - len(a)) for a, _ in rows])
    tgt = torch.tensor([b for _, b in rows])
    return src, tgt


class PointerSummarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(EXT, D, padding_idx=PAD)
        self.pos = nn.Embedding(SRC, D)
        enc = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(enc, 2, enable_nested_tensor=False)
        dec = nn.TransformerDecoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(dec, 1)
        self.norm = nn.LayerNorm(D)
        self.vocab = nn.Linear(D, V)
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)
        self.gate = nn.Linear(D, 1)

    def forward(self, src, tgt):
        pad = src == PAD
        mem = self.encoder(self.emb(src) + self.pos(torch.arange(src.size(1))), src_key_padding_mask=pad)
        t = tgt.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        h = self.norm(self.decoder(self.emb(tgt) + self.pos(torch.arange(t)), mem, tgt_mask=mask, memory_key_padding_mask=pad))
        p_vocab = F.softmax(self.vocab(h), dim=-1)
        p_vocab = F.pad(p_vocab, (0, OOV))
        score = self.query(h) @ self.key(mem).transpose(1, 2) / D ** 0.5
        copy = F.softmax(score.masked_fill(pad[:, None], float("-inf")), dim=-1)
        p_copy = torch.zeros_like(p_vocab).scatter_add(2, src[:, None].expand(-1, t, -1), copy)
        g = torch.sigmoid(self.gate(h))
        return torch.log(g * p_vocab + (1 - g) * p_copy + 1e-8)


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        src, tgt = collate(data)
        ys = tgt[:, :1]
        for _ in range(TGT - 2):
            ys = torch.cat([ys, model(src, ys)[:, -1:].argmax(-1)], 1)
        acc = (ys == tgt).all(1).float().mean().item()
    model.train()
    return acc


model = PointerSummarizer()
opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
train, test = [article() for _ in range(3000)], [article() for _ in range(200)]
for step in range(300):
    src, tgt = collate(random.sample(train, 24))
    log_probs = model(src, tgt[:, :-1])
    loss = F.nll_loss(log_probs.reshape(-1, EXT), tgt[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    opt.step()
    if step % 30 == 0 or step == 299:
        print(f"step {step} nll {loss.item():.4f}")
print(f"summary exact match {accuracy(model, test):.3f}")
