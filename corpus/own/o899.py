import math
import random
from dataclasses import dataclass
import torch
import torch.nn as nn

random.seed(5)
torch.manual_seed(5)
PAD, BOS, EOS = 0, 1, 2


@dataclass
class Config:
    n_words: int = 30
    d_model: int = 64
    nhead: int = 4
    layers: int = 1
    batch_size: int = 32
    epochs: int = 8
    lr: float = 2e-3
    gamma: float = 0.8


cfg = Config()
V = cfg.n_words + 3
lexicon = list(range(3, V))
random.shuffle(lexicon)
lexicon = dict(zip(range(3, V), lexicon))


def make_pair():
    n = random.randint(3, 6)
    src = [random.randrange(3, V) for _ in range(n)]
    words = src[:]
    for i in range(0, n - 1, 2):
        words[i], words[i + 1] = words[i + 1], words[i]
    return src, [BOS] + [lexicon[w] for w in words] + [EOS]


def collate(pairs):
    s = max(len(p[0]) for p in pairs)
    t = max(len(p[1]) for p in pairs)
    src = torch.tensor([p[0] + [PAD] * (s - len(p[0])) for p in pairs])
    tgt = torch.tensor([p[1] + [PAD] * (t - len(p[1])) for p in pairs])
    return src, tgt


class Translator(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.src_emb = nn.Embedding(V, cfg.d_model, padding_idx=PAD)
        self.tgt_emb = nn.Embedding(V, cfg.d_model, padding_idx=PAD)
        pe = torch.zeros(32, cfg.d_model)
        pos = torch.arange(32).unsqueeze(1)
        div = torch.exp(torch.arange(0, cfg.d_model, 2) * (-math.log(10000.0) / cfg.d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)
        self.core = nn.Transformer(cfg.d_model, cfg.nhead, cfg.layers, cfg.layers, 4 * cfg.d_model,
                                   dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(cfg.d_model, V)

    def forward(self, src, tgt):
        mask = torch.triu(torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool), diagonal=1)
        x = self.src_emb(src) + self.pe[:src.size(1)]
        y = self.tgt_emb(tgt) + self.pe[:tgt.size(1)]
        h = self.core(x, y, tgt_mask=mask, src_key_padding_mask=src == PAD,
                      tgt_key_padding_mask=tgt == PAD, memory_key_padding_mask=src == PAD)
        return self.out(h)


def evaluate(model, data, criterion):
    model.eval()
    with torch.no_grad():
        src, tgt = collate(data)
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, V), tgt[:, 1:].reshape(-1)).item()
        m = tgt[:, 1:] != PAD
        acc = (logits.argmax(-1) == tgt[:, 1:])[m].float().mean().item()
    model.train()
    return loss, acc


def main():
    train = [make_pair() for _ in range(2500)]
    val = [make_pair() for _ in range(300)]
    model = Translator(cfg)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=cfg.gamma)
    for epoch in range(cfg.epochs):
        model.train()
        random.shuffle(train)
        total, batches = 0.0, 0
        for i in range(0, len(train), cfg.batch_size):
            src, tgt = collate(train[i:i + cfg.batch_size])
            logits = model(src, tgt[:, :-1])
            loss = criterion(logits.reshape(-1, V), tgt[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            batches += 1
            scheduler.step()
        vl, va = evaluate(model, val, criterion)
        print(f"epoch {epoch + 1:2d} train {total / batches:.4f} val {vl:.4f} token acc {va:.4f}")


if __name__ == "__main__":
    main()
