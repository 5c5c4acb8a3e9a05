import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)


def get_corpus():
    text = "\n".join(topics[k] for k in sorted(topics))
    vocab = sorted(set(text))
    enc = {c: i for i, c in enumerate(vocab)}
    return torch.tensor([enc[c] for c in text]), len(vocab)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self, vocab, width=64, heads=4, depth=3, ctx=48):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(ctx, width)
        self.pos.weight.data.mul_(0.1)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.register_buffer("mask", torch.ones(ctx, ctx).triu(1).bool())

    def forward(self, x):
        h = self.tok(x) + self.pos.weight[: x.size(1)]
        for b in self.blocks:
            h = b(h, self.mask[: x.size(1), : x.size(1)])
        return self.head(self.norm(h))


def main():
    torch.manual_seed(29)
    data, vocab = get_corpus()
    ctx, rows, steps = 48, 16, 200
    model = LanguageModel(vocab, ctx=ctx)
    trainable = filter(lambda p: p.requires_grad, model.parameters())
    optimizer = torch.optim.SGD(trainable, lr=1.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    for step in range(steps):
        idx = torch.randint(len(data) - ctx - 1, (rows, 1)) + torch.arange(ctx + 1)
        window = data[idx]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, max_norm=0.15)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}")


main()
