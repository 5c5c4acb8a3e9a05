import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(13)
NPROD, BASKET, D, HEADS, DEPTH = 60, 10, 64, 4, 2
MASK = NPROD


def baskets(n, gen):
    recipes = torch.stack([torch.randperm(NPROD, generator=torch.Generator().manual_seed(500 + r))[:9]
                           for r in range(10)])
    r = torch.randint(0, 10, (n,), generator=gen)
    junk = torch.randint(0, NPROD, (n, 1), generator=gen)
    b = torch.cat([recipes[r], junk], 1)
    order = torch.rand(n, BASKET, generator=gen).argsort(1)
    return b.gather(1, order)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dropout=0.0):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.heads, self.dropout = heads, dropout

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.proj(y.transpose(1, 2).reshape(b, n, d))


class EncoderBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.pre1, self.pre2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads, dropout)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout / 2), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.pre1(x))
        return x + self.ff(self.pre2(x))


class BasketModel(nn.Module):
    def __init__(self, dropout=0.5):
        super().__init__()
        self.embed = nn.Embedding(NPROD + 1, D)
        self.blocks = nn.Sequential(*[EncoderBlock(D, HEADS, dropout) for _ in range(DEPTH)])
        self.final = nn.LayerNorm(D)
        self.decode = nn.Linear(D, NPROD)

    def forward(self, ids):
        return self.decode(self.final(self.blocks(self.embed(ids))))


gen = torch.Generator().manual_seed(99)
train, test = baskets(4000, gen), baskets(500, gen)
model = BasketModel()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.05)


def evaluate():
    model.eval()
    hit, nll = 0, 0.0
    with torch.inference_mode():
        for pos in range(BASKET):
            ids = test.clone()
            ids[:, pos] = MASK
            lg = model(ids)[:, pos].log_softmax(-1)
            nll -= lg.gather(1, test[:, pos:pos + 1]).mean().item()
            hit += (lg.argmax(-1) == test[:, pos]).float().mean().item()
    model.train()
    return hit / BASKET, nll / BASKET


for step in range(401):
    b = train[torch.randint(0, len(train), (48,), generator=gen)]
    hide = torch.rand(b.shape, generator=gen) < 0.2
    out = model(torch.where(hide, MASK, b))
    loss = F.cross_entropy(out[hide], b[hide])
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 80 == 0:
        acc, nll = evaluate()
        print(f"step={step} loss={loss.item():.4f} fill-in acc={acc:.3f} nll={nll:.4f}")
