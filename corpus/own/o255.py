import os
import random

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

SOURCES = ["argparse", "asyncio/base_events", "ast", "calendar", "csv", "difflib", "doctest", "tarfile"]
WIDTH = 40


def read_lines():
    root = os.path.dirname(os.__file__)
    rows = []
    for label, name in enumerate(SOURCES):
        with open(os.path.join(root, name + ".py"), encoding="utf8") as f:
            for line in f:
                line = line.strip()
                if len(line) > 12:
                    rows.append((line[:WIDTH], label))
    return rows


def encode(rows):
    x = torch.zeros(len(rows), WIDTH, dtype=torch.long)
    for i, (line, _) in enumerate(rows):
        codes = [min(ord(c), 127) for c in line]
        x[i, :len(codes)] = torch.tensor(codes)
    return TensorDataset(x, torch.tensor([r[1] for r in rows]))


class LineClassifier(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.char = nn.Embedding(128, d, padding_idx=0)
        self.place = nn.Embedding(WIDTH, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, len(SOURCES)))

    def forward(self, x):
        pad = x == 0
        h = self.encoder(self.char(x) + self.place.weight, src_key_padding_mask=pad)
        h = h.masked_fill(pad[..., None], 0).sum(1) / (~pad).sum(1, keepdim=True)
        return self.head(h)


def evaluate(model, loader, loss_fn):
    model.eval()
    losses, hits, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            losses += loss_fn(out, y).item() * len(y)
            hits += (out.argmax(-1) == y).sum().item()
            n += len(y)
    model.train()
    return losses / n, hits / n


def main():
    random.seed(11)
    torch.manual_seed(11)
    rows = read_lines()
    random.shuffle(rows)
    held_out = rows[:192]
    train = rows[192:192 + 160]
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(encode(train), batch_size=24, shuffle=True, drop_last=True)
    val_loader = DataLoader(encode(held_out), batch_size=128)
    model = LineClassifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    loss_fn = nn.CrossEntropyLoss()
    model, optimizer, loader, val_loader = accelerator.prepare(model, optimizer, loader, val_loader)
    print("train lines", len(train), "held-out lines", len(held_out))
    step, total = 0, 150
    recent = []
    while step < total:
        for x, y in loader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            recent = (recent + [loss.item()])[-20:]
            if step % 20 == 0 or step == total - 1:
                val, acc = evaluate(model, val_loader, loss_fn)
                print(f"step {step} loss {sum(recent) / len(recent):.4f} val_loss {val:.4f} val_acc {acc:.3f}")
            step += 1
            if step == total:
                break


main()
