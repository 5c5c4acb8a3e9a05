import math

import torch
import torch.nn as nn
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(6)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)]


class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, 0.0, batch_first=True, norm_first=True)
        self.transformer_encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.linear = nn.Linear(d_model, ntoken)
        self.linear.weight = self.embedding.weight
        self.init_weights()

    def init_weights(self):
        nn.init.zeros_(self.linear.bias)

    def forward(self, src):
        x = self.embedding(src) * math.sqrt(self.d_model)
        x = self.pos_encoder(x)
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        return self.linear(self.transformer_encoder(x, mask=mask))


def data_process():
    words = []
    for k in sorted(topics):
        words += topics[k].lower().split()
    counts = {}
    for w in words:
        counts[w] = counts.get(w, 0) + 1
    keep = sorted(counts, key=lambda w: (-counts[w], w))[:599]
    ids = {w: i + 1 for i, w in enumerate(keep)}
    return torch.tensor([ids.get(w, 0) for w in words])


data = data_process()
bptt, batch_size = 24, 16
n = data.numel() // batch_size
cols = data[: n * batch_size].view(batch_size, n)
model = TransformerModel(600, 96, 4, 192, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

acc, log_every = 0.0, 15
for batch in range(150):
    i = (batch * bptt) % (n - bptt - 1)
    x, y = cols[:, i:i + bptt], cols[:, i + 1:i + 1 + bptt]
    loss = criterion(model(x).reshape(-1, 600), y.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    acc += loss.item()
    if batch == 0 or (batch + 1) % log_every == 0:
        k = 1 if batch == 0 else log_every
        print(f"| batch {batch + 1:4d} | loss {(loss.item() if batch == 0 else acc / k):8.3f}")
        acc = 0.0
