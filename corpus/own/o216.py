import random
import re

import torch
import torch.nn.functional as F
from pydoc_data.topics import topics

words = sorted(set(re.findall(r"[a-z]{3,12}", "\n".join(topics.values()).lower())))
random.seed(42)
random.shuffle(words)
chars = sorted(set("".join(words)))
stoi = {s: i + 1 for i, s in enumerate(chars)}
stoi["."] = 0
vocab_size = len(stoi)
block_size = 4


def build_dataset(ws):
    X, Y = [], []
    for w in ws:
        context = [0] * block_size
        for ch in w + ".":
            X.append(context)
            Y.append(stoi[ch])
            context = context[1:] + [stoi[ch]]
    return torch.tensor(X), torch.tensor(Y)


n1 = int(0.9 * len(words))
Xtr, Ytr = build_dataset(words[:n1])
Xdev, Ydev = build_dataset(words[n1:])

g = torch.Generator().manual_seed(2147483647)
n_embd, n_hidden, n_layers = 24, 320, 5
C = torch.randn((vocab_size, n_embd), generator=g)
sizes = [n_embd * block_size] + [n_hidden] * n_layers
Ws = [torch.randn((i, o), generator=g) * 0.01 for i, o in zip(sizes[:-1], sizes[1:])]
bs = [torch.zeros(o) for o in sizes[1:]]
Wout = torch.randn((n_hidden, vocab_size), generator=g) * 0.01
bout = torch.zeros(vocab_size)
parameters = [C, *Ws, *bs, Wout, bout]
print(sum(p.nelement() for p in parameters))
for p in parameters:
    p.requires_grad = True


def forward(X):
    h = C[X].view(X.shape[0], -1)
    for W, b in zip(Ws, bs):
        h = torch.tanh(h @ W + b)
    return h @ Wout + bout


max_steps, batch_size = 300, 192
lossi = []
for i in range(max_steps):
    ix = torch.randint(0, Xtr.shape[0], (batch_size,), generator=g)
    loss = F.cross_entropy(forward(Xtr[ix]), Ytr[ix])
    for p in parameters:
        p.grad = None
    loss.backward()
    lr = 0.1 if i < 240 else 0.02
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
    lossi.append(loss.item())
    if i % 25 == 0 or i == max_steps - 1:
        print(f"{i:7d}/{max_steps:7d}: {loss.item():.4f}")
with torch.no_grad():
    print("dev", F.cross_entropy(forward(Xdev[:4000]), Ydev[:4000]).item())
