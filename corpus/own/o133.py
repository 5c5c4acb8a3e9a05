import math

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(64)

PEAK, STEPS, WARM = 3e-3, 150, 0
SYMBOLS, CTX, BATCH = 32, 24, 12

successors = torch.stack([torch.randperm(SYMBOLS), torch.randperm(SYMBOLS)], 1)


def walk(n):
    path = [torch.randint(SYMBOLS, (n,))]
    for _ in range(CTX):
        branch = (torch.rand(n) < 0.2).long()
        path.append(successors[path[-1], branch])
    return torch.stack(path, 1)


class PostNormLM(nn.Module):
    def __init__(self, d=48, heads=4, depth=12):
        super().__init__()
        self.tok = nn.Embedding(SYMBOLS, d)
        self.pos = nn.Embedding(CTX, d)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        for p in self.stack.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.head = nn.Linear(d, SYMBOLS)
        self.register_buffer("mask", torch.ones(CTX, CTX, dtype=torch.bool).triu(1))

    def forward(self, x):
        return self.head(self.stack(self.tok(x) + self.pos.weight, mask=self.mask))


def schedule(step):
    if step < WARM:
        return (step + 1) / WARM
    return 0.2 + 0.4 * (1 + math.cos(math.pi * (step - WARM) / (STEPS - WARM)))


model = PostNormLM()
optimizer = torch.optim.Adam(model.parameters(), lr=PEAK, betas=(0.9, 0.98))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
criterion = nn.CrossEntropyLoss()
for step in range(STEPS):
    window = walk(BATCH)
    loss = criterion(model(window[:, :-1]).transpose(1, 2), window[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 15 == 0 or step == STEPS - 1:
        print(f"step {step:4d} loss {loss.item():.4f}")
