import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

MAX_LR, MIN_LR, WARM, TOTAL = 2e-3, 2e-4, 15, 180
BOS, V, N = 20, 21, 10


def cosine_lr(step):
    if step < WARM:
        return MAX_LR * (step + 1) / WARM
    frac = (step - WARM) / (TOTAL - WARM)
    return MIN_LR + 0.5 * (MAX_LR - MIN_LR) * (1 + math.cos(math.pi * frac))


class Sorter(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.pos = nn.Embedding(N + 1, d)
        self.tr = nn.Transformer(d, 4, 1, 2, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.fc = nn.Linear(d, V)

    def embed(self, x):
        return self.emb(x) + self.pos(torch.arange(x.size(1)))

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        return self.fc(self.tr(self.embed(src), self.embed(tgt), tgt_mask=mask, tgt_is_causal=True))


def get_batch(n=24):
    src = torch.randint(0, 20, (n, N))
    tgt = src.sort(1).values
    return src, torch.cat([torch.full((n, 1), BOS), tgt[:, :-1]], 1), tgt


model = Sorter()
optimizer = torch.optim.AdamW(model.parameters(), lr=MAX_LR, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine_lr)
for step in range(TOTAL):
    src, tin, tout = get_batch()
    logits = model(src, tin)
    loss = F.cross_entropy(logits.view(-1, V), tout.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == TOTAL - 1:
        acc = (logits.argmax(-1) == tout).float().mean().item()
        print(f"step {step:3d} | loss {loss.item():.4f} | token acc {acc:.3f}")
