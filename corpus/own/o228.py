import torch
import torch.nn as nn

PAD, BOS, EOS = 0, 1, 2
DIGITS = 10
VOCAB = 3 + DIGITS
MAXLEN = 16


def make_batch(n, g):
    body = torch.randint(3, VOCAB, (n, 10), generator=g)
    shifted = (body - 3 + 5) % (VOCAB - 3) + 3
    src = body
    tgt = torch.cat([torch.full((n, 1), BOS), shifted, torch.full((n, 1), EOS)], 1)
    return src, tgt


class Translator(nn.Module):
    def __init__(self, d=64, heads=4, layers=6):
        super().__init__()
        self.d = d
        self.src_tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.tgt_tok = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Embedding(MAXLEN, d)
        self.core = nn.Transformer(d, heads, layers, layers, 4 * d, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(d, VOCAB)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def embed(self, table, ids):
        return table(ids) + self.pos(torch.arange(ids.size(1)))

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1))
        h = self.core(self.embed(self.src_tok, src), self.embed(self.tgt_tok, tgt), tgt_mask=mask, tgt_is_causal=True)
        return self.generator(h)


def rate(step):
    return 1.0


def train(steps=130):
    torch.manual_seed(11)
    g = torch.Generator().manual_seed(12)
    model = Translator()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(steps):
        src, tgt = make_batch(16, g)
        out = model(src, tgt[:, :-1])
        loss = criterion(out.flatten(0, 1), tgt[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 10 == 0 or step == steps - 1:
            acc = (out.argmax(-1) == tgt[:, 1:]).float().mean()
            print(f"[{step:3d}] loss={loss.item():.4f} token acc={acc:.3f} lr={scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    train()
