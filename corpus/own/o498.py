import re
import collections
import numpy as np
import torch
from pydoc_data.topics import topics

np.random.seed(6)
torch.manual_seed(6)
words = re.findall(r"[a-z_]+", " ".join(topics.values()).lower())
cnt = collections.Counter(words)
vocab = [w for w, c in cnt.most_common() if c >= 8]
idx = {w: i for i, w in enumerate(vocab)}
V = len(vocab)
freq = np.array([cnt[w] for w in vocab], dtype=np.float64)
freq /= freq.sum()
keep = np.minimum(1, np.sqrt(2e-3 / freq))
ids = np.array([idx[w] for w in words if w in idx])
noise = torch.tensor(freq ** 0.75)
print("tokens", len(ids), "vocab", V)


def pairs(window=4):
    s = ids[np.random.rand(len(ids)) < keep[ids]]
    out = []
    for d in range(1, window + 1):
        m = np.random.rand(len(s) - d) < (window + 1 - d) / window
        a, b = s[:-d][m], s[d:][m]
        out += [np.stack([a, b], 1), np.stack([b, a], 1)]
    p = np.concatenate(out)
    np.random.shuffle(p)
    return torch.from_numpy(p)


DIM, NEG, BS = 48, 5, 1024
emb_in = torch.nn.Embedding(V, DIM, sparse=True)
emb_out = torch.nn.Embedding(V, DIM, sparse=True)
torch.nn.init.uniform_(emb_in.weight, -0.5 / DIM, 0.5 / DIM)
torch.nn.init.zeros_(emb_out.weight)
opt = torch.optim.SparseAdam([emb_in.weight, emb_out.weight], lr=0.01)
logsig = torch.nn.functional.logsigmoid


def nearest(w, k=5):
    e = torch.nn.functional.normalize(emb_in.weight.detach(), dim=1)
    s = e @ e[idx[w]]
    return [vocab[i] for i in s.topk(k + 1).indices.tolist() if i != idx[w]]


step, avg = 0, []
LIMIT = 400
while step < LIMIT:
    for b in pairs().split(BS):
        c, o = b[:, 0], b[:, 1]
        n = torch.multinomial(noise, len(b) * NEG, replacement=True).view(-1, NEG)
        h = emb_in(c)
        pos = (h * emb_out(o)).sum(1)
        neg = torch.einsum("bd,bnd->bn", h, emb_out(n))
        loss = -(logsig(pos) + logsig(-neg).sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg.append(loss.item())
        if step % 25 == 0 or step == LIMIT - 1:
            print(f"step {step} sgns loss {np.mean(avg):.4f}")
            avg = []
        step += 1
        if step == LIMIT:
            break
for w in ("class", "integer", "list", "import"):
    if w in idx:
        print(w, "->", nearest(w))
