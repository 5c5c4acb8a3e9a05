import math
import time

import torch
import torch.nn as nn
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(1111)

bptt, batch_size, emsize, nhid, nlayers, nhead, dropout = 35, 20, 64, 128, 2, 2, 0.1


def tokenize(raw):
    words = []
    for line in raw.splitlines():
        words += line.lower().replace(".", " .").replace(",", " ,").split() + ["<eos>"]
    return words


corpus = tokenize("\n".join(topics[k] for k in sorted(topics)))[:60000]
counts = {}
for w in corpus:
    counts[w] = counts.get(w, 0) + 1
words = ["<unk>"] + [w for w, c in sorted(counts.items(), key=lambda kv: -kv[1])[:800]]
index = {w: i for i, w in enumerate(words)}
ids = torch.tensor([index.get(w, 0) for w in corpus])


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[:nbatch * bsz].view(bsz, -1).t().contiguous()


def get_batch(source, i):
    chunk = source[i:i + bptt]
    target = torch.roll(chunk, -1, dims=1)
    return chunk[:-1], target[:-1]


class TransformerModel(nn.Module):
    def __init__(self, ntoken, ninp, nhead, nhid, nlayers, dropout=0.5):
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        position = torch.arange(0, 200).unsqueeze(1).float()
        div = torch.exp(torch.arange(0, ninp, 2).float() * (-math.log(10000.0) / ninp))
        pe = torch.zeros(200, 1, ninp)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)
        self.drop = nn.Dropout(dropout)
        layers = nn.TransformerEncoderLayer(ninp, nhead, nhid, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layers, nlayers, enable_nested_tensor=False)
        self.ninp = ninp
        self.decoder = nn.Linear(ninp, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, src):
        mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        h = self.drop(self.encoder(src) * math.sqrt(self.ninp) + self.pe[:len(src)])
        return self.decoder(self.transformer_encoder(h, mask))


train_data = batchify(ids, batch_size)
model = TransformerModel(len(words), emsize, nhead, nhid, nlayers, dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
model.train()
start, total, count = time.time(), 0.0, 0
for epoch in range(1, 3):
    for batch, i in enumerate(range(0, train_data.size(0) - bptt, bptt)):
        data, targets = get_batch(train_data, i)
        output = model(data)
        loss = criterion(output.view(-1, len(words)), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total, count = total + loss.item(), count + 1
        if batch % 20 == 0:
            print(f"| epoch {epoch} | {batch:4d} batches | loss {total / count:5.3f} | ppl {math.exp(total / count):8.2f}")
            total, count = 0.0, 0
