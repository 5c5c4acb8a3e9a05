import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from pydoc_data.topics import topics

torch.set_num_threads(1)


class CharTokenizer:
    def __init__(self, text):
        self.text = text

    @property
    def alphabet(self):
        return {c: i for i, c in enumerate(sorted(set(self.text)))}

    def encode(self, s):
        table = self.alphabet
        return [table[c] for c in s]

    def __len__(self):
        return len(self.alphabet)


class CharDataset(Dataset):
    def __init__(self, text, tokenizer, block):
        self.text, self.tokenizer, self.block = text, tokenizer, block

    def __len__(self):
        return (len(self.text) - 1) // self.block

    def __getitem__(self, i):
        s = i * self.block
        ids = torch.tensor(self.tokenizer.encode(self.text[s:s + self.block + 1]))
        return ids[:-1], ids[1:]


class TinyGPT(nn.Module):
    def __init__(self, vocab, block, d=48, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(block, d)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block))

    def forward(self, x):
        return self.head(self.blocks(self.tok(x) + self.pos.weight, mask=self.mask))


def main():
    torch.manual_seed(4)
    text = "\n".join(topics[k] for k in sorted(topics))[:300000]
    tokenizer = CharTokenizer(text)
    block = 48
    data = CharDataset(text, tokenizer, block)
    loader = DataLoader(data, batch_size=12, shuffle=True, drop_last=True)
    model = TinyGPT(len(tokenizer), block)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    t0 = time.perf_counter()
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            dt = (time.perf_counter() - t0) / (step + 1)
            print(f"step {step} loss {loss.item():.4f} {1000 * dt:.0f} ms/step")
        if step == 70:
            break


if __name__ == "__main__":
    main()
