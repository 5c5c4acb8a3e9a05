import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

N_WORDS, LEN, WORLD = 60, 7, 4
BOS = N_WORDS
VOCAB = N_WORDS + 1


class Corpus:

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.lexicon = rng.permutation(N_WORDS)
        self.domains = np.split(rng.permutation(N_WORDS), WORLD)
        self.rng = rng

    def translate(self, src):
        swapped = src.copy()
        swapped[:, 0:-1:2], swapped[:, 1::2] = src[:, 1::2], src[:, 0:-1:2]
        return self.lexicon[swapped]

    def sentences(self, n, domain=None):
        words = np.arange(N_WORDS) if domain is None else self.domains[domain]
        src = self.rng.choice(words, size=(n, LEN))
        return torch.from_numpy(src), torch.from_numpy(self.translate(src))


class Seq2Seq(nn.Module):
    def __init__(self, d=48, heads=4):
        super().__init__()
        self.src = nn.Embedding(VOCAB, d)
        self.tgt = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(LEN, d) * 0.3)
        kw = dict(dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoderLayer(d, heads, 2 * d, **kw)
        self.dec = nn.TransformerDecoderLayer(d, heads, 2 * d, **kw)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, N_WORDS)
        self.register_buffer("mask", torch.ones(LEN, LEN).triu(1).bool())

    def forward(self, src, tgt_in):
        memory = self.enc(self.src(src) + self.pos)
        h = self.dec(self.tgt(tgt_in) + self.pos, memory, tgt_mask=self.mask)
        return self.out(self.norm(h))


def nll(model, src, tgt):
    tgt_in = torch.cat([torch.full((len(tgt), 1), BOS), tgt[:, :-1]], 1)
    return F.cross_entropy(model(src, tgt_in).flatten(0, 1), tgt.flatten())


class Worker:
    def __init__(self, rank, model, shard, lr, batch):
        self.rank, self.model, self.batch = rank, model, batch
        self.src, self.tgt = shard
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.gen = torch.Generator().manual_seed(100 + rank)

    def compute(self):
        i = torch.randint(0, len(self.src), (self.batch,), generator=self.gen)
        loss = nll(self.model, self.src[i], self.tgt[i])
        self.opt.zero_grad(set_to_none=False)
        loss.backward()
        return loss.item()


def flat_grads(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def scatter_grads(model, flat):
    offset = 0
    for p in model.parameters():
        g = p.grad.reshape(-1)
        g = flat[offset: offset + g.numel()]
        offset += g.numel()


def all_reduce(workers):
    mean = torch.stack([flat_grads(w.model) for w in workers]).mean(0)
    for w in workers:
        scatter_grads(w.model, mean)


def main():
    torch.manual_seed(17)
    corpus = Corpus(17)
    base = Seq2Seq()
    workers = [Worker(r, copy.deepcopy(base), corpus.sentences(600, r), lr=3e-3, batch=12) for r in range(WORLD)]
    test = corpus.sentences(200)
    for step in range(1, 181):
        losses = [w.compute() for w in workers]
        all_reduce(workers)
        for w in workers:
            w.opt.step()
        if step % 20 == 0:
            print(f"step {step:4d} loss {np.mean(losses):.4f}")
    model = workers[0].model.eval()
    with torch.no_grad():
        print(f"test loss {nll(model, *test).item():.4f}")


if __name__ == "__main__":
    main()
