import os
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 242
    topics: int = 8
    words: int = 30
    seqlen: int = 24
    dim: int = 48
    heads: int = 4
    layers: int = 2
    pre_steps: int = 260
    ft_steps: int = 120
    pre_lr: float = 3e-3
    ft_lr: float = 3e-4
    labeled: int = 24
    seed: int = 3


PAD, MASK = 0, 1


def make_corpus(cfg, n, g):
    """Every document has a main topic (60 %) and background words from all topics."""
    y = torch.randint(0, cfg.topics, (n,), generator=g)
    t = torch.where(torch.rand(n, cfg.seqlen, generator=g) < 0.6, y[:, None],
                    torch.randint(0, cfg.topics, (n, cfg.seqlen), generator=g))
    w = torch.randint(0, cfg.words, (n, cfg.seqlen), generator=g)
    x = 2 + t * cfg.words + w
    return x, y


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim, padding_idx=PAD)
        self.pos = nn.Embedding(cfg.seqlen, cfg.dim)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 4 * cfg.dim, 0.1, "gelu",
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        return self.norm(self.blocks(h))


class MaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, x):
        return self.lm_head(self.encoder(x))


class Classifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = Encoder(cfg)
        self.head = nn.Linear(cfg.dim, cfg.topics)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def pretrain(cfg, corpus, path):
    model = nn.DataParallel(MaskedLM(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.pre_lr, weight_decay=0.01, betas=(0.9, 0.98))
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.pre_lr, total_steps=cfg.pre_steps, pct_start=0.1)
    model.train()
    for step in range(cfg.pre_steps):
        x = corpus[torch.randint(0, len(corpus), (64,))]
        m = torch.rand(x.shape) < 0.2
        logits = model(x.masked_fill(m, MASK))
        loss = F.cross_entropy(logits[m], x[m])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == cfg.pre_steps - 1:
            print(f"[pretrain] step {step:4d} mlm loss {loss.item():.4f}")
    torch.save({"model": model.state_dict(), "step": cfg.pre_steps}, path)


def finetune(cfg, train, test, path):
    model = Classifier(cfg)
    ckpt = torch.load(path, map_location="cpu")
    model.load_state_dict(ckpt["model"], strict=False)
    opt = torch.optim.AdamW([{"params": model.encoder.parameters(), "lr": cfg.ft_lr},
                             {"params": model.head.parameters(), "lr": 10 * cfg.ft_lr}], weight_decay=0.01)
    xtr, ytr = train
    xte, yte = test
    for step in range(cfg.ft_steps):
        model.train()
        i = torch.randint(0, len(xtr), (16,))
        loss = F.cross_entropy(model(xtr[i]), ytr[i])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 or step == cfg.ft_steps - 1:
            model.eval()
            with torch.no_grad():
                out = model(xte)
                tl, acc = F.cross_entropy(out, yte).item(), (out.argmax(-1) == yte).float().mean().item()
            print(f"[finetune] step {step:4d} loss {loss.item():.4f} test loss {tl:.4f} test acc {acc:.3f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    corpus, _ = make_corpus(cfg, 6000, g)
    train = make_corpus(cfg, cfg.labeled, g)
    test = make_corpus(cfg, 500, g)
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "encoder.pt")
        pretrain(cfg, corpus, path)
        finetune(cfg, train, test, path)


if __name__ == "__main__":
    main()
