import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

AA = "ACDEFGHIKLMNPQRSTVWY"
FAMILIES, PER_FAMILY, LENGTH = 10, 160, 40


def synthesize(rng):
    motifs = [rng.integers(0, 20, 7) for _ in range(FAMILIES)]
    xs, ys = [], []
    for fam, motif in enumerate(motifs):
        s = rng.integers(0, 20, (PER_FAMILY, LENGTH))
        for row in s:
            for _ in range(2):
                at = rng.integers(0, LENGTH - 7)
                keep = rng.random(7) < 0.8
                row[at:at + 7] = np.where(keep, motif, row[at:at + 7])
        xs.append(s)
        ys.append(np.full(PER_FAMILY, fam))
    return np.stack(xs), np.stack(ys)


class FamilyNet(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(20, d)
        self.local = nn.Conv1d(d, d, 7, padding=3)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.02)
        self.enc = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.1, batch_first=True)
        self.out = nn.Linear(d, FAMILIES)

    def forward(self, x):
        h = self.local(self.emb(x).transpose(1, 2)).transpose(1, 2)
        h = self.enc(F.gelu(h) + self.pos)
        return self.out(h.amax(1))


def batches(order, size):
    for i in range(0, len(order) - size + 1, size):
        yield order[i:i + size]


def accuracy(net, x, y):
    net.eval()
    with torch.no_grad():
        a = (net(x).argmax(1) == y).float().mean().item()
    net.train()
    return a


def train(seed=12, epochs=4, bs=32, lr=1e-3):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    xs, ys = synthesize(rng)
    cut = PER_FAMILY - 32
    xtr, ytr = torch.from_numpy(xs[:, :cut].reshape(-1, LENGTH)), torch.from_numpy(ys[:, :cut].reshape(-1))
    xva, yva = torch.from_numpy(xs[:, cut:].reshape(-1, LENGTH)), torch.from_numpy(ys[:, cut:].reshape(-1))

    net = FamilyNet()
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01)
    order = np.arange(len(xtr))
    it = 0
    for epoch in range(epochs):
        rng.permutation(order)
        for idx in batches(order, bs):
            loss = F.cross_entropy(net(xtr[idx]), ytr[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if it % 10 == 0:
                print(f"epoch {epoch} it {it} loss {loss.item():.4f}", flush=True)
            it += 1
    print(f"validation accuracy {accuracy(net, xva, yva):.4f}")


if __name__ == "__main__":
    train()
