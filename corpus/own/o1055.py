import math

import torch
from torch import nn
from torch.nn import functional as F


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=2e-4, betas=(0.95, 0.98), weight_decay=2.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                direction = m.lerp(p.grad, 1 - b1).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(direction, alpha=-group["lr"])
                m.lerp_(p.grad, 1 - b2)


class Trainer:
    CTX, VOCAB = 40, 28

    def __init__(self, seed=77, steps=260, batch=20):
        torch.manual_seed(seed)
        self.steps, self.batch = steps, batch
        self.gen = torch.Generator().manual_seed(seed)
        g = torch.Generator().manual_seed(5)
        self.codons = torch.randint(0, 26, (30, 4), generator=g)
        self.weights = torch.rand(30, 30, generator=g).pow(8) + 1e-4
        dim = 72
        layer = nn.TransformerEncoderLayer(dim, 6, 3 * dim, dropout=0.0, batch_first=True, norm_first=True,
                                           activation="gelu")
        self.model = nn.ModuleDict({
            "tok": nn.Embedding(self.VOCAB, dim),
            "pos": nn.Embedding(self.CTX, dim),
            "body": nn.TransformerEncoder(layer, 2, nn.LayerNorm(dim), enable_nested_tensor=False),
            "head": nn.Linear(dim, self.VOCAB),
        })
        nn.init.normal_(self.model["tok"].weight, std=0.1)
        nn.init.normal_(self.model["pos"].weight, std=0.1)
        decay = [p for p in self.model.parameters() if p.ndim >= 2]
        plain = [p for p in self.model.parameters() if p.ndim < 2]
        self.opt = Lion([{"params": decay}, {"params": plain, "weight_decay": 0.0}], lr=5e-4)
        self.mask = nn.Transformer.generate_square_subsequent_mask(self.CTX)

    def sample(self, n):
        rows = []
        state = torch.randint(30, (n,), generator=self.gen)
        for _ in range(self.CTX // 5 + 2):
            rows.append(self.codons[state])
            rows.append(torch.full((n, 1), 26))
            state = torch.multinomial(self.weights[state], 1, generator=self.gen).squeeze(1)
        start = int(torch.randint(0, 5, (1,), generator=self.gen))
        return torch.cat(rows, 1)[:, start:start + self.CTX + 1]

    def loss(self, seq):
        x, y = seq[:, :-1], seq[:, 1:]
        h = self.model["tok"](x) + self.model["pos"].weight
        logits = self.model["head"](self.model["body"](h, mask=self.mask, is_causal=True))
        return F.cross_entropy(logits.reshape(-1, self.VOCAB), y.reshape(-1))

    def lr_at(self, i):
        return 5e-4 * min(1.0, (i + 1) / 15) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * i / self.steps)))

    def run(self):
        held = self.sample(100)
        for i in range(self.steps):
            for group in self.opt.param_groups:
                group["lr"] = self.lr_at(i)
            loss = self.loss(self.sample(self.batch))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % 26 == 0 or i == self.steps - 1:
                with torch.no_grad():
                    v = self.loss(held).item()
                print(f"[{i:3d}] train={loss.item():.3f} held={v:.3f} lr={self.lr_at(i):.1e}")


if __name__ == "__main__":
    Trainer().run()
