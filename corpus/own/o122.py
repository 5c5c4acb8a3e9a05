import torch
from torch import nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)


class Seq(nn.Module):
    def __init__(self, vocab, d=64, ctx=40):
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.p = nn.Parameter(torch.randn(ctx, d) * 0.1)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.n = nn.LayerNorm(d)
        self.o = nn.Linear(d, vocab)
        self.register_buffer("m", torch.ones(ctx, ctx).triu(1).bool())

    def forward(self, x):
        h = self.e(x) + self.p[: x.size(1)]
        for layer in self.layers:
            h = layer(h, src_mask=self.m[: x.size(1), : x.size(1)])
        return self.o(self.n(h))


class Accumulator:
    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.reset()

    def reset(self):
        self.micro, self.rows, self.total = 0, 0, 0.0
        self.optimizer.zero_grad()

    def add(self, x, y):
        loss = F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())
        (loss / self.every).backward()
        self.micro += 1
        self.rows += x.size(0)
        self.total += loss.item() / self.every
        if self.micro < self.every:
            return None
        self.apply()
        done = self.total
        self.reset()
        return done

    @torch.no_grad()
    def apply(self):
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.div_(self.rows)
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()


class Pipeline:
    def __init__(self, ctx, rows, seed):
        text = "".join(topics[k] for k in sorted(topics))
        self.chars = sorted(set(text))
        lut = {c: i for i, c in enumerate(self.chars)}
        self.data = torch.tensor([lut[c] for c in text])
        self.ctx, self.rows = ctx, rows
        self.g = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            i = torch.randint(len(self.data) - self.ctx - 1, (self.rows, 1), generator=self.g)
            w = self.data[i + torch.arange(self.ctx + 1)]
            yield w[:, :-1], w[:, 1:]


if __name__ == "__main__":
    torch.manual_seed(41)
    pipe = Pipeline(40, 8, 41)
    net = Seq(len(pipe.chars))
    acc = Accumulator(
        net, torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.9, nesterov=True), every=4
    )
    updates = 0
    for x, y in pipe:
        value = acc.add(x, y)
        if value is None:
            continue
        if updates % 10 == 0:
            print(f"update {updates} loss {value:.4f}")
        updates += 1
        if updates > 90:
            break
