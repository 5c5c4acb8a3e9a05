import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
FRAMES, MELS, PER_WORD = 40, 20, 640


def utterance(word, rng):
    base = np.random.default_rng(900 + word)
    start, end = base.uniform(2, 17, 3), base.uniform(2, 17, 3)
    bend = base.uniform(-3, 3, 3)
    u = np.linspace(0, 1, FRAMES) ** np.exp(rng.normal(0, 0.25))
    speaker = rng.normal(0, 0.9)
    bins = np.arange(MELS)[None, :]
    out = np.zeros((FRAMES, MELS))
    for s, e, b in zip(start, end, bend):
        track = s + (e - s) * u + b * np.sin(np.pi * u) + speaker
        out += np.exp(-0.5 * ((bins - track[:, None]) / 0.9) ** 2)
    return (out + rng.normal(0, 0.45, out.shape)).astype(np.float32)


class Shards(IterableDataset):

    def __init__(self, words, per_word, seed):
        self.words, self.per_word, self.seed = list(words), per_word, seed
        self.epoch = 0

    def records(self, shard):
        return [(shard, i) for i in range(self.per_word)]

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng([self.seed, wid, self.epoch])
        mine = self.words[wid::n]
        queue = []
        for shard in mine:
            recs = self.records(shard)
            queue += [recs[j] for j in rng.permutation(len(recs))]
        for word, i in queue:
            x = utterance(word, np.random.default_rng([self.seed, word, i]))
            yield torch.from_numpy(x), word


class Attend(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).reshape(b, t, self.h, d // self.h) for f in (self.wq, self.wk, self.wv))
        att = torch.einsum("bqhe,bkhe->bhqk", q, k).mul((d // self.h) ** -0.5).softmax(-1)
        return self.wo(torch.einsum("bhqk,bkhe->bqhe", att, v).reshape(b, t, d))


class KeywordNet(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(MELS, d, 5, stride=2, padding=2), nn.GELU())
        self.pos = nn.Parameter(torch.randn(FRAMES // 2, d) * 0.1)
        self.att = nn.ModuleList(Attend(d, 4) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(depth))
        self.n1 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.n2 = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, len(WORDS)))

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).transpose(1, 2) + self.pos
        for a, f, n1, n2 in zip(self.att, self.ff, self.n1, self.n2):
            h = h + a(n1(h))
            h = h + f(n2(h))
        return self.out(h.mean(1))


@torch.no_grad()
def accuracy(net, xs, ys):
    net.eval()
    hit = (net(xs).argmax(-1) == ys).float().mean().item()
    net.train()
    return hit


if __name__ == "__main__":
    torch.manual_seed(3)
    net = KeywordNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    hx, hy = zip(*Shards(range(len(WORDS)), 30, seed=77))
    hx, hy = torch.stack(hx), torch.tensor(hy)
    train = Shards(range(len(WORDS)), PER_WORD, seed=1)
    step = 0
    for epoch in range(1, 3):
        train.epoch = epoch
        for x, y in DataLoader(train, batch_size=50, num_workers=2):
            loss = nn.functional.cross_entropy(net(x), y, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
        print(f"epoch {epoch} held-out accuracy {accuracy(net, hx, hy):.3f}")
