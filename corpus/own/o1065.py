import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)

CARD = [6, 8, 5, 7, 6, 4, 9, 5]
N_TRAIN, N_TEST = 5000, 1200


def make_table(n, effects, pair):
    cols = torch.stack([torch.randint(c, (n,)) for c in CARD], 1)
    score = sum(effects[j][cols[:, j]] for j in range(len(CARD)))
    score = score + pair[cols[:, 0], cols[:, 1]]
    label = (score + 0.4 * torch.randn(n) > 0).long()
    return cols, label


effects = [torch.randn(c) for c in CARD]
pair = 1.5 * torch.randn(CARD[0], CARD[1])
train_x, train_y = make_table(N_TRAIN, effects, pair)
test_x, test_y = make_table(N_TEST, effects, pair)


class FeatureTokenizer(nn.Module):
    def __init__(self, cardinalities, dim):
        super().__init__()
        self.register_buffer("offset", torch.tensor([0] + cardinalities[:-1]).cumsum(0))
        self.table = nn.Embedding(sum(cardinalities), dim)
        self.column = nn.Parameter(torch.randn(len(cardinalities), dim) * 0.02)
        self.summary = nn.Parameter(torch.randn(1, 1, dim) * 0.02)

    def forward(self, cols):
        tok = self.table(cols + self.offset) + self.column
        return torch.cat([self.summary.expand(len(cols), -1, -1), tok], 1)


class TabularTransformer(nn.Module):
    def __init__(self, cardinalities, dim=32, heads=4, depth=2, classes=2):
        super().__init__()
        self.tokenizer = FeatureTokenizer(cardinalities, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.05, activation="gelu", norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, cols):
        x = self.tokenizer(cols)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    hits = sum((model(xb).argmax(-1) == yb).sum().item() for xb, yb in zip(x.split(128), y.split(128)))
    model.train()
    return hits / len(y)


model = TabularTransformer(CARD)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
start = time.time()
step = 0
for epoch in range(6):
    order = torch.randperm(N_TRAIN)
    total = 0.0
    for idx in order.split(128):
        loss = F.cross_entropy(model(train_x[idx]), train_y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(idx)
        if step % 20 == 0:
            print(f"  step {step} loss {loss.item():.4f}")
        step += 1
    print(f"epoch {epoch} train loss {total / N_TRAIN:.4f} test acc {accuracy(model, test_x, test_y):.4f}")
print(f"majority rate {max(test_y.float().mean().item(), 1 - test_y.float().mean().item()):.4f}")
print(f"elapsed {time.time() - start:.1f}s")
