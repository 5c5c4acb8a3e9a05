import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")


class Config:
    symbols = 64
    width = 64
    heads = 4
    depth = 3
    length = 20
    batch = 48
    lr = 1.5e-3
    steps = 160


def frozen_table(cfg):
    g = torch.Generator().manual_seed(70)
    table = torch.randn(cfg.symbols, cfg.width, generator=g)
    return nn.Embedding.from_pretrained(table, freeze=True)


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn_norm = nn.LayerNorm(cfg.width)
        self.attn = nn.MultiheadAttention(cfg.width, cfg.heads, batch_first=True)
        self.ff_norm = nn.LayerNorm(cfg.width)
        self.up = nn.Linear(cfg.width, 3 * cfg.width)
        self.down = nn.Linear(3 * cfg.width, cfg.width)

    def forward(self, x):
        y = self.attn_norm(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.ff_norm(x))))


class Scorer(nn.Module):
    def __init__(self, cfg, gradient_checkpointing=True):
        super().__init__()
        self.embed = frozen_table(cfg)
        g = torch.Generator().manual_seed(71)
        self.register_buffer("position", 0.3 * torch.randn(cfg.length, cfg.width, generator=g))
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.depth))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, 2)
        self.gradient_checkpointing = gradient_checkpointing

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        return self.head(self.norm(x))


def draw(cfg, n, g):
    ids = torch.randint(cfg.symbols, (n, cfg.length), generator=g)
    first = ids[:, :1]
    y = ((ids % 4) == (first % 4)).long()
    return ids, y


def main():
    cfg = Config()
    torch.manual_seed(7)
    g = torch.Generator().manual_seed(72)
    model = Scorer(cfg).train()
    params = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable {sum(p.numel() for p in params)} of {sum(p.numel() for p in model.parameters())}")
    optimizer = torch.optim.AdamW(params, lr=cfg.lr, weight_decay=0.01)
    for step in range(cfg.steps):
        ids, y = draw(cfg, cfg.batch, g)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == cfg.steps - 1:
            hit = (logits.argmax(-1) == y).float().mean().item()
            print(f"step {step:3d} loss {loss.item():.4f} acc {hit:.3f}")


if __name__ == "__main__":
    main()
