import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

torch.manual_seed(71)
EPOCHS, ACCUM, MICRO, CLASSES = 2, 4, 12, 8


def digits(n):
    proto = torch.randn(CLASSES, 1, 6, 6)
    y = torch.randint(CLASSES, (n,))
    img = 0.6 * torch.randn(n, 1, 16, 16)
    at = torch.randint(0, 11, (n, 2))
    for i in range(n):
        r, c = at[i].tolist()
        img[i, :, r:r + 6, c:c + 6] += proto[y[i]]
    return TensorDataset(img, y)


class ViT(nn.Module):
    def __init__(self, d=64, patch=4, side=16):
        super().__init__()
        self.patchify = nn.Conv2d(1, d, 6, stride=2)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 37, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, CLASSES))

    def forward(self, x):
        h = self.patchify(x).flatten(2).transpose(1, 2)
        h = torch.cat((self.cls.expand(len(h), -1, -1), h), 1) + self.pos
        return self.head(self.encoder(h)[:, 0])


loader = DataLoader(digits(3600), batch_size=MICRO, shuffle=True, drop_last=True)
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
updates = len(loader) // ACCUM * EPOCHS
scheduler = get_linear_schedule_with_warmup(optimizer, int(0.1 * updates), updates)
criterion = nn.CrossEntropyLoss()

done, total, hits = 0, 0.0, 0
for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(loader):
        logits = model(x)
        loss = criterion(logits, y) / ACCUM
        loss.backward()
        total += loss.item()
        hits += (logits.argmax(-1) == y).sum().item()
        if (i + 1) % ACCUM == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == 1 or done % 15 == 0:
                k = 1 if done == 1 else 14 if done == 15 else 15
                print(f"epoch {epoch} update {done}/{updates} loss {total / k:.4f} acc {hits / (k * ACCUM * MICRO):.3f}")
                total, hits = 0.0, 0
        scheduler.step()
