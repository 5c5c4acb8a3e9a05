import copy

import torch
from torch import nn
import torch.nn.functional as F

VOCAB, TAGS, LENGTH = 50, 10, 16


def make_batch(n, gen, shift):
    x = torch.randint(0, VOCAB, (n, LENGTH), generator=gen)
    y = (x + shift * (x % 3 == 0)) % TAGS
    return x, y


class Tagger(nn.Module):
    def __init__(self, dim=48, layers=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, TAGS)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        return self.out(self.norm(self.body(h)))


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = copy.deepcopy(model).float().requires_grad_(False)

    @torch.no_grad()
    def on_step(self, trainer):
        for s, p in zip(self.shadow.parameters(), trainer.model.parameters()):
            s.lerp_(p.float(), 1 - self.decay)


class Printer:
    def __init__(self, every):
        self.every = every

    def on_step(self, trainer):
        if trainer.count % self.every == 0:
            print(f"[{trainer.name}] step {trainer.count:4d} loss {trainer.loss:.4f}")


class Trainer:
    def __init__(self, name, model, lr, dtype, callbacks):
        self.name, self.dtype, self.callbacks = name, dtype, callbacks
        self.model = model.to(dtype)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0)
        self.count = 0

    def fit(self, steps, gen, shift, batch=24):
        for _ in range(steps):
            x, y = make_batch(batch, gen, shift)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.dtype != torch.float32):
                logits = self.model(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.loss = loss.item()
            self.count += 1
            for cb in self.callbacks:
                cb.on_step(self)


@torch.no_grad()
def evaluate(model, shift):
    x, y = make_batch(200, torch.Generator().manual_seed(77), shift)
    model.eval()
    logits = model(x).float()
    model.train()
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()).item()
    return f"loss {loss:.4f} accuracy {(logits.argmax(-1) == y).float().mean():.3f}"


def main():
    torch.manual_seed(4)
    gen = torch.Generator().manual_seed(4)
    model = Tagger()
    Trainer("pre", model, 2e-3, torch.float32, [Printer(25)]).fit(80, gen, shift=0)
    print("source domain:", evaluate(model, 0))

    ema = EMA(model, 0.9)
    Trainer("tune", model, 1e-4, torch.bfloat16, [Printer(25), ema]).fit(200, gen, shift=3)
    print("target domain:", evaluate(model, 3))
    print("target domain, averaged weights:", evaluate(ema.shadow, 3))


if __name__ == "__main__":
    main()
