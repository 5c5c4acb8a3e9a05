import torch
import torch.nn as nn

PAD, BOS, EOS, FIRST = 0, 1, 2, 3
SYMBOLS = 24


class Seq2Seq(nn.Module):
    def __init__(self, d=64, heads=4, depth=4, length=16):
        super().__init__()
        self.src, self.tgt = nn.Embedding(SYMBOLS + FIRST, d), nn.Embedding(SYMBOLS + FIRST, d)
        self.place = nn.Embedding(length, d)
        self.core = nn.Transformer(d, heads, depth, depth, 2 * d, dropout=0.0, batch_first=True)
        self.out = nn.Linear(d, SYMBOLS + FIRST)

    def forward(self, src, tgt):
        at = torch.arange(16)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        h = self.core(self.src(src) + self.place(at[: src.size(1)]), self.tgt(tgt) + self.place(at[: tgt.size(1)]),
                      tgt_mask=mask, tgt_is_causal=True)
        return self.out(h)


def pairs(n, length=8):
    s = torch.randint(FIRST, FIRST + SYMBOLS, (n, length))
    t = FIRST + (s.flip(1) - FIRST + 5) % SYMBOLS
    return s, torch.cat([torch.full((n, 1), BOS), t, torch.full((n, 1), EOS)], 1)


def train(steps=200, peak=5e-3):
    torch.manual_seed(90)
    model = Seq2Seq()
    for p in model.core.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 - 0.9 * s / steps)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    for step in range(steps):
        s, t = pairs(32)
        loss = criterion(model(s, t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.4f}  lr {scheduler.get_last_lr()[0]:.2e}")


train()
