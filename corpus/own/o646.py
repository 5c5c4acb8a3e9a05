import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MAXLEN, DIM, HEADS, LOOPS = 26, 20, 48, 4, 3
MICRO, ACCUM, UPDATES, PAD = 8, 4, 130, -100


class LoopedDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.embed.weight, std=DIM ** -0.5)
        self.n1, self.n2, self.nf = nn.RMSNorm(DIM), nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def block(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.n2(x))).square())

    def forward(self, ids):
        h = self.embed(ids) * DIM ** 0.5
        for _ in range(LOOPS):
            h = self.block(h)
        return F.linear(self.nf(h), self.embed.weight)


def documents(n, g):
    x = torch.zeros(n, MAXLEN, dtype=torch.long)
    y = torch.full((n, MAXLEN), PAD)
    for i in range(n):
        k = int(torch.randint(6, MAXLEN + 1, (1,), generator=g))
        d = int(torch.randint(1, 4, (1,), generator=g))
        s = (int(torch.randint(0, VOCAB, (1,), generator=g)) + d * torch.arange(k + 1)) % VOCAB
        x[i, :k] = s[:-1]
        y[i, :k] = s[1:]
    return x, y


def main():
    torch.manual_seed(91)
    g = torch.Generator().manual_seed(92)
    model = LoopedDecoder()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    for update in range(UPDATES):
        window = [documents(MICRO, g) for _ in range(ACCUM)]
        count = sum((y != PAD).sum() for _, y in window)
        total = 0.0
        for x, y in window:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PAD, reduction="sum") / count
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        if update % 10 == 0 or update == UPDATES - 1:
            print(f"update {update:4d} loss {total:.4f}")


main()
