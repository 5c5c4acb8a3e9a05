import math

import torch
from torch import nn, Tensor
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(21)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.0, max_len: int = 512):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pe[:x.size(0)]
        return self.dropout(x)


class EventClassifier(nn.Module):
    def __init__(self, n_tokens: int, n_classes: int, d_model: int = 48, nhead: int = 4, nlayers: int = 2):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(n_tokens, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.decoder = nn.Linear(d_model, n_classes)

    def forward(self, src: Tensor) -> Tensor:
        h = self.embed(src)
        h = self.pos_encoder(h)
        h = self.encoder(h)
        return self.decoder(self.norm(h).mean(dim=1))


def make_events(n, length=20, n_tokens=30, n_alarms=4):
    seq = torch.randint(n_alarms, n_tokens, (n, length))
    label = torch.empty(n, dtype=torch.long)
    for i in range(n):
        where = torch.randperm(length)[:n_alarms]
        seq[i, where] = torch.arange(n_alarms)
        label[i] = where.argmin()
    return seq, label


train = TensorDataset(*make_events(6400))
test_x, test_y = make_events(512)
loader = DataLoader(train, batch_size=32, shuffle=True)

model = EventClassifier(30, 4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)

step = 0
total = 0.0
for epoch in range(1):
    for src, label in loader:
        model.train()
        optimizer.zero_grad()
        loss = criterion(model(src), label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        total += loss.item()
        if step == 1 or step % 20 == 0:
            model.eval()
            with torch.no_grad():
                acc = (model(test_x).argmax(-1) == test_y).float().mean().item()
            print(f"epoch {epoch} batch {step} loss {loss.item():.4f} mean {total / step:.4f} test acc {acc:.3f}")
