import time
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_train: int = 1920
    n_test: int = 600
    frames: int = 40
    mels: int = 24
    tags: int = 10
    d_model: int = 48
    heads: int = 4
    layers: int = 2
    batch_size: int = 48
    epochs: int = 6
    lr: float = 1e-3
    clip: float = 5.0
    seed: int = 11


def synth_clips(n, cfg, gen, prototypes):
    x = 0.8 * torch.randn(n, cfg.frames, cfg.mels, generator=gen)
    y = (torch.rand(n, cfg.tags, generator=gen) < 0.25).float()
    for tag in range(cfg.tags):
        length = prototypes[tag].size(0)
        starts = torch.randint(0, cfg.frames - length, (n,), generator=gen)
        for i in torch.nonzero(y[:, tag]).flatten().tolist():
            s = starts[i].item()
            x[i, s:s + length] += prototypes[tag]
    return x, y


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v)
        return self.proj(o.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Tagger(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.mels, cfg.d_model)
        self.pos = nn.Parameter(0.02 * torch.randn(cfg.frames, cfg.d_model))
        self.blocks = nn.ModuleList([Block(cfg.d_model, cfg.heads) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.tags)

    def forward(self, x):
        h = self.inp(x) + self.pos
        for blk in self.blocks:
            h = blk(h)
        return self.out(self.norm(h)).amax(dim=1)


class Executor:
    def __init__(self, model, optimizer, clip, log_interval=25):
        self.model, self.optimizer = model, optimizer
        self.clip, self.log_interval = clip, log_interval
        self.step = 0

    def train(self, batches):
        self.model.train()
        for feats, target in batches:
            logits = self.model(feats)
            loss = F.binary_cross_entropy_with_logits(logits, target)
            self.optimizer.zero_grad()
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            if torch.isfinite(grad_norm):
                self.optimizer.step()
            self.step += 1
            if self.step % self.log_interval == 0:
                print(f"step {self.step} loss {loss.item():.4f}")

    @torch.no_grad()
    def cv(self, x, y):
        self.model.eval()
        logits = torch.cat([self.model(c) for c in x.split(200)])
        loss = F.binary_cross_entropy_with_logits(logits, y).item()
        pred = (logits > 0).float()
        tp = (pred * y).sum()
        f1 = (2 * tp / (pred.sum() + y.sum()).clamp(min=1)).item()
        return loss, f1


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    prototypes = [torch.randn(6 + k % 4, cfg.mels, generator=gen) for k in range(cfg.tags)]
    x, y = synth_clips(cfg.n_train, cfg, gen, prototypes)
    xt, yt = synth_clips(cfg.n_test, cfg, gen, prototypes)
    model = Tagger(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    executor = Executor(model, optimizer, cfg.clip)
    for epoch in range(cfg.epochs):
        order = torch.randperm(cfg.n_train, generator=gen)
        executor.train((x[i], y[i]) for i in order.split(cfg.batch_size))
        cv_loss, f1 = executor.cv(xt, yt)
        print(f"epoch {epoch} cv_loss {cv_loss:.4f} f1 {f1:.4f}")
    print(f"final held-out f1: {f1:.4f}")


if __name__ == "__main__":
    main()
