from dataclasses import dataclass
import torch
from torch import nn, Tensor
import torch.nn.functional as F


@dataclass
class Args:
    keys: int = 24
    values: int = 24
    pairs: int = 12
    dim: int = 128
    heads: int = 2
    blocks: int = 2
    steps: int = 320
    bs: int = 32
    lr: float = 1.5e-3


class RecallData:
    def __init__(self, a: Args, seed: int):
        self.a, self.g = a, torch.Generator().manual_seed(seed)

    def draw(self, n: int):
        a = self.a
        k = torch.rand(n, a.keys, generator=self.g).argsort(1)[:, : a.pairs]
        v = torch.randint(0, a.values, (n, a.pairs), generator=self.g) + a.keys
        ask = torch.rand(n, a.pairs, generator=self.g).argsort(1)
        bound = torch.stack([k, v], 2).flatten(1)
        return torch.cat([bound, k.gather(1, ask)], 1), v.gather(1, ask)


class NormedAttention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.scale = self.hd ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out_proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, a: Args):
        super().__init__()
        self.attn_norm, self.ff_norm = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.attn = NormedAttention(a.dim, a.heads)
        self.ff = nn.Sequential(nn.Linear(a.dim, 2 * a.dim), nn.SiLU(), nn.Linear(2 * a.dim, a.dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.ff(self.ff_norm(x))


class Recaller(nn.Module):
    def __init__(self, a: Args):
        super().__init__()
        self.emb = nn.Embedding(a.keys + a.values, a.dim)
        self.shift = nn.Linear(a.dim, a.dim, bias=False)
        self.layers = nn.Sequential(*[Layer(a) for _ in range(a.blocks)])
        self.norm = nn.RMSNorm(a.dim)
        self.out = nn.Linear(a.dim, a.keys + a.values)

    def forward(self, ids: Tensor) -> Tensor:
        e = self.emb(ids)
        prev = F.pad(e, (0, 0, 1, 0))[:, :-1]
        return self.out(self.norm(self.layers(e + self.shift(prev))))


class Trainer:
    def __init__(self, a: Args):
        self.a = a
        self.model = Recaller(a)
        self.data = RecallData(a, 1)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=a.lr, betas=(0.9, 0.98))

    def loss(self, ids, ans):
        return F.cross_entropy(self.model(ids)[:, 2 * self.a.pairs:].flatten(0, 1), ans.flatten())

    def fit(self):
        for i in range(self.a.steps):
            for group in self.opt.param_groups:
                group["lr"] = self.a.lr * min(1.0, (i + 1) / 30)
            loss = self.loss(*self.data.draw(self.a.bs))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 40 == 0:
                print(f"[{i:03d}] loss={loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self):
        ids, ans = RecallData(self.a, 77).draw(300)
        pred = self.model.eval()(ids)[:, 2 * self.a.pairs:].argmax(-1)
        return (pred == ans).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(Args())
    trainer.fit()
    print(f"held-out recall = {trainer.evaluate():.3f}")
