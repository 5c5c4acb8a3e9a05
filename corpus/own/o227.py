import argparse
import html.entities
import inspect
from encodings import cp437

import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2Model
from pydoc_data.topics import topics

torch.manual_seed(70)
sources = ["".join(topics[k] for k in sorted(topics))] + [inspect.getsource(m) for m in (argparse, html.entities, cp437)]
vocab = {c: i for i, c in enumerate(sorted(set("".join(sources))))}
parts = [torch.tensor([vocab[c] for c in s]) for s in sources]

backbone = GPT2Model(GPT2Config(vocab_size=len(vocab), n_positions=64, n_embd=64, n_layer=2, n_head=4,
                                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
backbone.requires_grad_(False)
backbone.eval()
head = nn.Sequential(nn.BatchNorm1d(128), nn.Linear(128, 192), nn.ReLU(), nn.Dropout(0.2), nn.Linear(192, len(parts)))
opt = torch.optim.SGD(head.parameters(), lr=0.5)


def draw(n, lo, hi):
    y = torch.randint(len(parts), (n,))
    rows = []
    for k in y.tolist():
        p = parts[k]
        a, b = int(lo * (len(p) - 64)), int(hi * (len(p) - 64))
        at = int(torch.randint(a, b, ()))
        rows.append(p[at:at + 64])
    return torch.stack(rows), y


def features(ids):
    with torch.no_grad():
        h = backbone(ids).last_hidden_state
    return torch.cat((h.mean(1), h.amax(1)), -1).detach()


for step in range(150):
    ids, y = draw(32, 0.0, 0.9)
    loss = nn.functional.cross_entropy(head(features(ids)), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(head.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 149:
        head.eval()
        with torch.no_grad():
            ids, y = draw(200, 0.9, 1.0)
            acc = (head(features(ids)).argmax(-1) == y).float().mean().item()
        head.train()
        print(f"step {step} loss {loss.item():.4f} heldout accuracy {acc:.3f}")
