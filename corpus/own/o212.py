import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
ROWS, ITEMS, GOODS, BANDS = 200_000, 16, 96, 8


class Survey:
    def __init__(self):
        self.baskets = torch.randint(GOODS, (ROWS, ITEMS))
        self.band = (self.baskets.amax(1) - GOODS + 2 * BANDS).clamp(min=0) // 2
        design = 0.5 + torch.rand(ROWS)
        self.weight = design / design.sum() / ITEMS

    def batches(self, size, count):
        order = torch.randperm(ROWS)
        for i in range(count):
            at = order[i * size:(i + 1) * size]
            yield self.baskets[at], self.band[at], self.weight[at]


class BasketModel(nn.Module):
    def __init__(self, d=32, hidden=64):
        super().__init__()
        self.goods = nn.Embedding(GOODS, d)
        self.attend = nn.MultiheadAttention(d, 2, batch_first=True)
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, hidden), nn.Linear(hidden, d)
        self.read = nn.Linear(d, BANDS)

    def forward(self, basket):
        x = self.goods(basket)
        x = self.norm_1(x + self.attend(x, x, x, need_weights=False)[0])
        x = self.norm_2(x + self.down(F.gelu(self.up(x))))
        return self.read(x.mean(dim=1))


survey, model = Survey(), BasketModel()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for step, (basket, band, weight) in enumerate(survey.batches(32, 300)):
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(basket)
        each = F.cross_entropy(logits, band, reduction="none")
        loss = (each * weight).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 299:
        print(f"step {step} weighted nll {loss.item():.3e} per household {(loss / weight.sum()).item():.4f}")
