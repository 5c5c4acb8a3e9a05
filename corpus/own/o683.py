from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    n_mels: int = 20
    n_phones: int = 10
    dim: int = 48
    layers: int = 2
    batch: int = 16
    utterances: int = 480
    epochs: int = 7
    lr: float = 2e-3
    lr_decay: float = 0.85
    clip: float = 5.0
    seed: int = 11


class Corpus:
    def __init__(self, cfg, n, seed):
        rng = np.random.default_rng(seed)
        self.templates = np.random.default_rng(100).normal(0, 1.0, (cfg.n_phones + 1, cfg.n_mels))
        self.items = []
        for _ in range(n):
            phones = [int(rng.integers(1, cfg.n_phones + 1))]
            for _ in range(int(rng.integers(3, 7))):
                nxt = int(rng.integers(1, cfg.n_phones + 1))
                while nxt == phones[-1]:
                    nxt = int(rng.integers(1, cfg.n_phones + 1))
                phones.append(nxt)
            frames = []
            for p in phones:
                dur = int(rng.integers(4, 9))
                env = np.hanning(dur + 2)[1:-1, None] * 0.5 + 0.7
                frames.append(self.templates[p][None] * env)
            mel = np.concatenate(frames)
            mel = mel + rng.normal(0, 0.6, mel.shape) + rng.normal(0, 0.2, (1, cfg.n_mels))
            self.items.append((torch.tensor(mel, dtype=torch.float32), torch.tensor(phones)))

    def batches(self, size, shuffle, generator=None):
        order = torch.randperm(len(self.items), generator=generator) if shuffle else torch.arange(len(self.items))
        for i in range(0, len(order), size):
            chunk = [self.items[j] for j in order[i:i + size].tolist()]
            mel = nn.utils.rnn.pad_sequence([c[0] for c in chunk], batch_first=True)
            tgt = nn.utils.rnn.pad_sequence([c[1] for c in chunk], batch_first=True)
            yield (mel, torch.tensor([len(c[0]) for c in chunk]), tgt,
                   torch.tensor([len(c[1]) for c in chunk]))


class Recogniser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.sub = nn.Conv1d(cfg.n_mels, cfg.dim, 3, stride=2, padding=1)
        layer = nn.TransformerEncoderLayer(cfg.dim, 4, 2 * cfg.dim, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.loc = nn.Conv1d(cfg.dim, cfg.dim, 5, padding=2, groups=cfg.dim)
        self.norm = nn.LayerNorm(cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.n_phones + 1)

    def forward(self, mel, lens):
        h = self.sub(mel.transpose(1, 2))
        h = (h + self.loc(torch.relu(h))).transpose(1, 2)
        lens = (lens + 1) // 2
        pad = torch.arange(h.size(1))[None] >= lens[:, None]
        h = self.enc(h, src_key_padding_mask=pad)
        return self.out(self.norm(h)).log_softmax(-1), lens


class Callback:
    def on_batch_end(self, trainer): pass
    def on_epoch_end(self, trainer): pass


class LRDecay(Callback):
    def __init__(self, sched):
        self.sched = sched

    def on_batch_end(self, trainer):
        self.sched.step()


class Logger(Callback):
    def __init__(self, every):
        self.every = every

    def on_batch_end(self, trainer):
        if trainer.step % self.every == 0:
            print(f"step {trainer.step:4d}  ctc {trainer.last_loss:.4f}")

    def on_epoch_end(self, trainer):
        print(f"epoch {trainer.epoch}  mean ctc {trainer.epoch_loss:.4f}")


class Trainer:
    def __init__(self, cfg, model, opt, callbacks):
        self.cfg, self.model, self.opt, self.callbacks = cfg, model, opt, callbacks
        self.ctc = nn.CTCLoss(blank=0, zero_infinity=True)
        self.step = 0

    def loss(self, batch):
        mel, mel_len, tgt, tgt_len = batch
        logp, out_len = self.model(mel, mel_len)
        return self.ctc(logp.transpose(0, 1), tgt, out_len, tgt_len)

    def fit(self, corpus, generator):
        for self.epoch in range(self.cfg.epochs):
            self.model.train()
            total = []
            for batch in corpus.batches(self.cfg.batch, True, generator):
                loss = self.loss(batch)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.clip)
                self.opt.step()
                self.step += 1
                self.last_loss = loss.item()
                total.append(self.last_loss)
                for cb in self.callbacks:
                    cb.on_batch_end(self)
            self.epoch_loss = sum(total) / len(total)
            for cb in self.callbacks:
                cb.on_epoch_end(self)


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        prev, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + (x != y))
    return row[-1]


@torch.no_grad()
def phone_error_rate(model, corpus, size):
    model.eval()
    errs = total = 0
    for mel, mel_len, tgt, tgt_len in corpus.batches(size, False):
        logp, lens = model(mel, mel_len)
        for b, path in enumerate(logp.argmax(-1)):
            path = torch.unique_consecutive(path[:lens[b]]).tolist()
            hyp = [p for p in path if p != 0]
            ref = tgt[b, :tgt_len[b]].tolist()
            errs += edit_distance(hyp, ref)
            total += len(ref)
    return errs / total


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    train, dev = Corpus(cfg, cfg.utterances, 1), Corpus(cfg, 96, 2)
    model = Recogniser(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=cfg.lr_decay)
    Trainer(cfg, model, opt, [LRDecay(sched), Logger(25)]).fit(train, gen)
    print(f"dev phone error rate {phone_error_rate(model, dev, cfg.batch):.3f}")
