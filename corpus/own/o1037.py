import math

import torch
from torch import nn
from torch.nn import functional as F

PAD, BOS, EOS = 0, 1, 2
N_SRC, N_TGT, MAX_SRC = 40, 40, 9


class PhraseBook:
    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.lexicon = torch.randperm(N_TGT, generator=g) + 3
        self.verbs = set((torch.randperm(N_SRC, generator=g)[:12] + 3).tolist())
        self.gen = g

    def pair(self):
        n = int(torch.randint(4, MAX_SRC + 1, (1,), generator=self.gen))
        src = (torch.randint(N_SRC, (n,), generator=self.gen) + 3).tolist()
        verbs = [w for w in src if w in self.verbs]
        others = [w for w in src if w not in self.verbs]
        tgt = [int(self.lexicon[w - 3]) for w in others + verbs]
        return src, [BOS] + tgt + [EOS]

    def batch(self, n):
        pairs = [self.pair() for _ in range(n)]
        ls, lt = max(len(s) for s, _ in pairs), max(len(t) for _, t in pairs)
        src = torch.tensor([s + [PAD] * (ls - len(s)) for s, _ in pairs])
        tgt = torch.tensor([t + [PAD] * (lt - len(t)) for _, t in pairs])
        return src, tgt


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.0, max_len=128):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class Translator(nn.Module):
    def __init__(self, d_model=64, heads=4, layers=2):
        super().__init__()
        self.src_emb = nn.Embedding(N_SRC + 3, d_model, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(N_TGT + 3, d_model, padding_idx=PAD)
        self.pos = PositionalEncoding(d_model)
        self.core = nn.Transformer(d_model, heads, layers, layers, 128, dropout=0.0,
                                   batch_first=True, norm_first=True)
        self.proj = nn.Linear(d_model, N_TGT + 3)
        self.d_model = d_model
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt):
        T = tgt.size(1)
        causal = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
        s = self.pos(self.src_emb(src) * math.sqrt(self.d_model))
        t = self.pos(self.tgt_emb(tgt) * math.sqrt(self.d_model))
        h = self.core(s, t, tgt_mask=causal, src_key_padding_mask=src == PAD,
                      tgt_key_padding_mask=tgt == PAD, memory_key_padding_mask=src == PAD)
        return self.proj(h)


class Trainer:
    def __init__(self, model, data, steps=280, batch_size=48, lr=2e-3, warmup=40):
        self.model, self.data = model, data
        self.steps, self.batch_size = steps, batch_size
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), eps=1e-9)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: min((s + 1) / warmup, (warmup / (s + 1)) ** 0.5))
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)

    def step(self):
        self.model.train()
        src, tgt = self.data.batch(self.batch_size)
        logits = self.model(src, tgt[:, :-1])
        loss = self.criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    @torch.no_grad()
    def translate(self, src):
        self.model.eval()
        out = torch.full((src.size(0), 1), BOS)
        for _ in range(MAX_SRC + 1):
            nxt = self.model(src, out)[:, -1].argmax(-1, keepdim=True)
            out = torch.cat([out, nxt], 1)
        return out

    def score(self, src, tgt):
        out = self.translate(src)[:, : tgt.size(1)]
        keep = (tgt != PAD) & (tgt != BOS)
        full = F.pad(out, (0, tgt.size(1) - out.size(1)))
        return ((full == tgt) & keep).sum().item() / keep.sum().item()

    def fit(self):
        dev = self.data.batch(100)
        for i in range(1, self.steps + 1):
            loss = self.step()
            if i % 20 == 0 or i == 1:
                print(f"iter {i:4d}  loss {loss:.4f}  lr {self.scheduler.get_last_lr()[0]:.5f}")
            if i % 70 == 0:
                print(f"iter {i:4d}  dev token accuracy (greedy) {self.score(*dev):.3f}")


torch.manual_seed(17)
Trainer(Translator(), PhraseBook(4)).fit()
