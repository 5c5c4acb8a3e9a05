import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MASK, LEN = 24, 24, 24


class AdamWLite(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, wd=0.05):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, wd=wd))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"], st["m"], st["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                st["t"] += 1
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                mhat = st["m"] / (1 - b1 ** st["t"])
                vhat = st["v"] / (1 - b2 ** st["t"])
                if p.ndim > 1:
                    p.mul_(1 - g["lr"] * g["wd"])
                p.addcdiv_(mhat, vhat.sqrt().add_(g["eps"]), value=-g["lr"])


class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + 1, d)
        self.pos = nn.Embedding(LEN, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2))
        self.norm = nn.LayerNorm(d)
        self.cls = nn.Linear(d, VOCAB)

    def forward(self, x):
        h = self.tok(x) + self.pos.weight
        for l in self.layers:
            h = l(h)
        return self.cls(self.norm(h))


def stream(n, gen):
    period = 4
    motif = torch.randint(0, VOCAB, (n, period), generator=gen)
    x = motif.repeat(1, LEN // period)
    flip = torch.rand(x.shape, generator=gen) < 0.02
    return torch.where(flip, torch.randint(0, VOCAB, x.shape, generator=gen), x)


def corrupt(x, gen, rate=0.2):
    chosen = torch.rand(x.shape, generator=gen) < rate
    return x.masked_fill(chosen, MASK), x.masked_fill(~chosen, -100), chosen


def main(seed=23, steps=420, bs=48):
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(seed)
    model = Encoder()
    optim = AdamWLite(model.parameters(), lr=1.5e-3)
    for step in range(steps):
        inp, lab, _ = corrupt(stream(bs, gen), gen)
        loss = F.cross_entropy(model(inp).flatten(0, 1), lab.flatten(), ignore_index=-100)
        optim.zero_grad()
        loss.backward()
        optim.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"{step:5d}  mlm loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        x = stream(512, gen)
        inp, _, chosen = corrupt(x, gen)
        acc = (model(inp).argmax(-1) == x)[chosen].float().mean()
    print(f"masked accuracy on new streams {acc.item():.4f}")


if __name__ == "__main__":
    main()
