import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MASK, SEQ, PERIOD = 40, 40, 24, 6


def motif_batch(gen, n):
    motif = torch.randint(VOCAB, (n, PERIOD), generator=gen)
    tokens = motif.repeat(1, SEQ // PERIOD)
    noise = torch.rand(n, SEQ, generator=gen) < 0.03
    tokens = torch.where(noise, torch.randint(VOCAB, (n, SEQ), generator=gen), tokens)
    hide = torch.rand(n, SEQ, generator=gen) < 0.15
    return tokens.masked_fill(hide, MASK), tokens.masked_fill(~hide, -100)


class EinsumAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        hd = dim // heads
        self.to_q = nn.Parameter(torch.empty(dim, heads, hd))
        self.to_k = nn.Parameter(torch.empty(dim, heads, hd))
        self.to_v = nn.Parameter(torch.empty(dim, heads, hd))
        self.to_out = nn.Parameter(torch.empty(heads, hd, dim))
        self.scale = hd ** -0.5
        for w in (self.to_q, self.to_k, self.to_v, self.to_out):
            nn.init.normal_(w, std=dim ** -0.5)

    def forward(self, x):
        q = torch.einsum("btc,chd->bthd", x, self.to_q)
        k = torch.einsum("btc,chd->bthd", x, self.to_k)
        v = torch.einsum("btc,chd->bthd", x, self.to_v)
        w = torch.einsum("bihd,bjhd->bhij", q, k).mul(self.scale).softmax(-1)
        y = torch.einsum("bhij,bihd->bihd", w, v)
        return torch.einsum("bthd,hdc->btc", y, self.to_out)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention = EinsumAttention(dim, heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.dense_in = nn.Linear(dim, 2 * dim)
        self.dense_out = nn.Linear(2 * dim, dim)
        self.output_norm = nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.dense_out(F.gelu(self.dense_in(self.output_norm(x))))


class MaskedLM(nn.Module):
    def __init__(self, dim=64, heads=4, depth=2):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB + 1, dim)
        self.positions = nn.Embedding(SEQ, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(depth)])
        self.final_norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, VOCAB)

    def forward(self, ids, labels):
        h = self.tokens(ids) + self.positions(torch.arange(ids.size(1)))
        for layer in self.layers:
            h = layer(h)
        kept = labels != -100
        scores = self.decoder(self.final_norm(h)[kept])
        return F.cross_entropy(scores, labels[kept]), (scores.argmax(-1) == labels[kept]).float().mean()


def main():
    torch.manual_seed(40)
    gen = torch.Generator().manual_seed(41)
    model = MaskedLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    for step in range(1, 201):
        loss, accuracy = model(*motif_batch(gen, 40))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1 or step % 20 == 0:
            print(f"[{step:03d}/200] mlm_loss={loss.item():.4f} mlm_acc={accuracy.item():.3f}")


if __name__ == "__main__":
    main()
