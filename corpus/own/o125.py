import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(36)

PAD, BOS, DIGITS, LENGTH = 0, 1, 20, 10


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout, causal=False):
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, context=None):
        context = x if context is None else context
        y = F.scaled_dot_product_attention(
            self.split(self.q(x)),
            self.split(self.k(context)),
            self.split(self.v(context)),
            dropout_p=self.dropout,
            is_causal=self.causal,
        )
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    def __init__(self, dim, dropout):
        super().__init__(
            nn.Linear(dim, 3 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(3 * dim, dim)
        )


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attn, self.ff = Attention(dim, heads, dropout), FeedForward(dim, dropout)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.self_attn = Attention(dim, heads, dropout, causal=True)
        self.cross, self.ff = Attention(dim, heads, dropout), FeedForward(dim, dropout)
        self.n1, self.n2, self.n3 = (nn.LayerNorm(dim) for _ in range(3))

    def forward(self, y, memory):
        y = y + self.self_attn(self.n1(y))
        y = y + self.cross(self.n2(y), memory)
        return y + self.ff(self.n3(y))


class Seq2Seq(nn.Module):
    def __init__(self, vocab, dim=64, heads=2, dropout=0.35):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)
        self.src_pos, self.tgt_pos = nn.Embedding(LENGTH, dim), nn.Embedding(LENGTH, dim)
        self.encoder, self.decoder = (
            EncoderLayer(dim, heads, dropout),
            DecoderLayer(dim, heads, dropout),
        )
        self.norm_e, self.norm_d = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, src, tgt):
        m = self.norm_e(self.encoder(self.src(src) + self.src_pos.weight))
        h = self.tgt(tgt) + self.tgt_pos.weight[: tgt.size(1)]
        return self.out(self.norm_d(self.decoder(h, m)))


def pairs(n):
    src = torch.randint(2, 2 + DIGITS, (n, LENGTH))
    tgt = src.flip(1)
    return src, torch.cat([torch.full((n, 1), BOS), tgt[:, :-1]], 1), tgt


@torch.no_grad()
def evaluate(model, held):
    model.eval()
    src, inp, tgt = held
    logits = model(src, inp)
    model.train()
    return F.cross_entropy(logits.flatten(0, 1), tgt.flatten()).item(), (
        logits.argmax(-1) == tgt
    ).all(1).float().mean().item()


model = Seq2Seq(2 + DIGITS)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
held = pairs(256)
for step in range(240):
    src, inp, tgt = pairs(48)
    loss = F.cross_entropy(model(src, inp).flatten(0, 1), tgt.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 30 == 0 or step == 239:
        v, exact = evaluate(model, held)
        print(f"step {step:3d} train {loss.item():.4f} eval loss {v:.4f} exact {exact:.3f}")
