import torch
from torch import nn
import torch.nn.functional as F

VOCAB, LENGTH = 24, 18


def batch(n, gen):
    pairs = 3
    keys = torch.rand(n, 8, generator=gen).argsort(1)[:, :pairs]
    vals = torch.randint(8, 16, (n, pairs), generator=gen)
    listed = torch.stack([keys, vals], 2).flatten(1)
    perm = torch.rand(n, pairs, generator=gen).argsort(1)
    asked = torch.stack([keys.gather(1, perm), vals.gather(1, perm)], 2).flatten(1)
    sep = torch.full((n, 1), 16)
    ids = torch.cat([listed, sep, asked], 1)
    target = ids[:, 1:].clone()
    target[:, : 2 * pairs + 1] = -100
    target[:, 2 * pairs + 2 :: 2] = -100
    return ids[:, :-1], target


class Net(nn.Module):
    def __init__(self, d=48, heads=4, layers=2):
        super().__init__()
        self.heads = heads
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(LENGTH, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(layers))
        self.proj = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.fc1 = nn.ModuleList(nn.Linear(d, 2 * d) for _ in range(layers))
        self.fc2 = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * layers + 1))
        self.out = nn.Linear(d, VOCAB)

    def attend(self, i, x):
        b, t, d = x.shape
        q, k, v = self.qkv[i](x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        score = (q @ k.transpose(-1, -2)).float() / (d // self.heads) ** 0.5
        score = score.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = score.softmax(-1).to(v.dtype) @ v
        return self.proj[i](y.transpose(1, 2).reshape(b, t, d))

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for i in range(len(self.qkv)):
            x = x + self.attend(i, self.norms[2 * i](x))
            x = x + self.fc2[i](F.relu(self.fc1[i](self.norms[2 * i + 1](x))))
        return self.out(self.norms[-1](x)).float()


class MasterAdam:

    def __init__(self, model, lr, scale=2.0**20, grow_every=60):
        self.params = list(model.parameters())
        self.master = [p.detach().float().clone() for p in self.params]
        self.opt = torch.optim.Adam(self.master, lr=lr, betas=(0.9, 0.98))
        self.scale, self.grow_every, self.good, self.skipped = scale, grow_every, 0, 0

    def backward(self, loss):
        for p in self.params:
            p.grad = None
        (loss * self.scale).backward()

    @torch.no_grad()
    def step(self):
        if not all(torch.isfinite(p.grad).all() for p in self.params):
            self.scale /= 4
            self.good = 0
            self.skipped += 1
            return
        for m, p in zip(self.master, self.params):
            m.grad = p.grad.float() / self.scale
        nn.utils.clip_grad_norm_(self.master, 1.0)
        self.opt.step()
        for m, p in zip(self.master, self.params):
            p.copy_(m)
        self.good += 1
        if self.good % self.grow_every == 0:
            self.scale *= 2


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(0)
    model = Net().half()
    opt = MasterAdam(model, lr=3e-3)
    for step in range(260):
        x, y = batch(24, gen)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
        opt.backward(loss)
        opt.step()
        if step % 25 == 0 or step == 259:
            print(f"step {step:4d} loss {loss.item():.4f} scale 2^{torch.tensor(opt.scale).log2():.0f} skipped {opt.skipped}")
    with torch.no_grad():
        x, y = batch(400, gen)
        hit = (model(x).argmax(-1) == y)[y != -100]
    print(f"recall accuracy {hit.float().mean():.3f}")


if __name__ == "__main__":
    main()
