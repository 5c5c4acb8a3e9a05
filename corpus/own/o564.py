import torch
import torch.nn as nn
import torch.nn.functional as F

VOC, TOPICS, QLEN, DLEN = 240, 40, 8, 16
BATCH, PIECE = 64, 16
gen = torch.Generator().manual_seed(31)
topic_words = torch.randperm(VOC, generator=gen).view(TOPICS, -1)


def pairs(n):
    topic = torch.randint(0, TOPICS, (n, 2), generator=gen)

    def text(length, noise):
        which = topic.gather(1, torch.randint(0, 2, (n, length), generator=gen))
        w = topic_words[which, torch.randint(0, VOC // TOPICS, (n, length), generator=gen)]
        r = torch.rand(n, length, generator=gen) < noise
        return torch.where(r, torch.randint(0, VOC, (n, length), generator=gen), w)

    return text(QLEN, 0.1), text(DLEN, 0.3)


class Tower(nn.Module):
    def __init__(self, d=32, out=32):
        super().__init__()
        self.emb = nn.Embedding(VOC, d)
        nn.init.normal_(self.emb.weight, std=0.3)
        self.layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.pool = nn.Linear(d, 1)
        self.proj = nn.Linear(d, out)

    def forward(self, ids):
        h = self.layer(self.emb(ids))
        h = (self.pool(h).softmax(1) * h).sum(1)
        return F.normalize(self.proj(h), dim=-1)


class BothWays:

    def __init__(self, left, right, temp=0.1):
        self.left, self.right, self.temp = left, right, temp

    @torch.no_grad()
    def embed(self, tower, pieces):
        return torch.cat([tower(p) for p in pieces])

    def criterion(self, a, b):
        s = a @ b.mT / self.temp
        diag = s.diagonal()
        return 0.5 * ((s.logsumexp(1) - diag) + (s.logsumexp(0) - diag)).mean()

    def replay(self, tower, pieces, cached):
        todo = list(cached.split(PIECE))
        for piece in pieces:
            vec = tower(piece)
            torch.autograd.backward(vec, todo.pop())

    def __call__(self, x, y):
        xs, ys = x.split(PIECE), y.split(PIECE)
        a = self.embed(self.left, xs).requires_grad_()
        b = self.embed(self.right, ys).requires_grad_()
        loss = self.criterion(a, b)
        ga, gb = torch.autograd.grad(loss, (a, b))
        self.replay(self.left, xs, ga)
        self.replay(self.right, ys, gb)
        return loss.item()


@torch.no_grad()
def recall_at_1(left, right, x, y):
    return ((left(x) @ right(y).mT).argmax(1) == torch.arange(len(x))).float().mean().item()


def main():
    torch.manual_seed(1)
    left, right = Tower(), Tower()
    opt = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=2e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    step_fn = BothWays(left, right)
    hx, hy = pairs(128)
    for step in range(220):
        opt.zero_grad()
        value = step_fn(*pairs(BATCH))
        opt.step()
        warm.step()
        if step % 20 == 0 or step == 219:
            print(f"step {step:3d} nce {value:.4f}")
    print(f"recall@1 on 128 held-out pairs: {recall_at_1(left, right, hx, hy):.3f}")


if __name__ == "__main__":
    main()
