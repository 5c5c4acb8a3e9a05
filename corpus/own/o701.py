import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VALUES, LENGTH = 10, 16
VOCAB, CLASSES = 48, VALUES * VALUES


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(2 * VALUES, VOCAB, (n, LENGTH), generator=g)
    first = torch.randint(0, LENGTH // 2, (n,), generator=g)
    second = torch.randint(LENGTH // 2, LENGTH, (n,), generator=g)
    rows = torch.arange(n)
    va = torch.randint(0, VALUES, (n,), generator=g)
    vb = torch.randint(0, VALUES, (n,), generator=g)
    x[rows, first], x[rows, second] = va, VALUES + vb
    return x, va * VALUES + vb


class Encoder(nn.Module):
    def __init__(self, dim, heads, layers, dropout):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(0.1 * torch.randn(LENGTH + 1, dim))
        self.cls = nn.Parameter(0.1 * torch.randn(dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.trunk = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, CLASSES)

    def forward(self, x):
        h = self.emb(x)
        h = torch.cat([self.cls.expand(len(x), 1, -1), h], dim=1) + self.pos
        return self.out(self.norm(self.trunk(h)[:, 0]))

    def predict(self, x):
        return F.softmax(self(x), dim=-1)


class DistillLoss(nn.Module):

    def __init__(self, temperature=2.0, alpha=0.7):
        super().__init__()
        self.t, self.alpha = temperature, alpha

    def forward(self, student, teacher, labels):
        soft = F.softmax(teacher / self.t, dim=-1)
        kd = F.cross_entropy(student / self.t, soft) * self.t**2
        return self.alpha * kd + (1 - self.alpha) * F.cross_entropy(student, labels)


def batches(x, y, size, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        for ix in torch.randperm(len(x), generator=g).split(size):
            if len(ix) == size:
                yield x[ix], y[ix]


@torch.no_grad()
def accuracy(model, x, y):
    was = model.training
    model.eval()
    acc = (model(x).argmax(-1) == y).float().mean().item()
    model.train(was)
    return acc


def train_teacher(x, y, steps=150):
    teacher = Encoder(64, 4, 2, 0.0)
    opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    stream = batches(x, y, 48, 1)
    for step in range(steps):
        bx, by = next(stream)
        loss = F.cross_entropy(teacher(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 30 == 0:
            print(f"teacher step {step:4d} loss {loss.item():.4f}")
    return teacher.eval().requires_grad_(False)


def distil(student, teacher, x, y, steps=180):
    criterion = DistillLoss()
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * s / steps))
    )
    stream = batches(x, y, 48, 2)
    for step in range(steps):
        bx, by = next(stream)
        loss = criterion(student.predict(bx), teacher(bx), by)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 30 == 0 or step == steps - 1:
            print(f"student step {step:4d} loss {loss.item():.4f}")


def main():
    torch.manual_seed(3)
    x, y = make_data(6000, 0)
    vx, vy = make_data(1000, 1)
    teacher = train_teacher(x, y)
    print(f"teacher accuracy {accuracy(teacher, vx, vy):.3f}")
    student = Encoder(40, 4, 1, 0.0)
    distil(student, teacher, x, y)
    print(f"student accuracy {accuracy(student, vx, vy):.3f}")
    with torch.no_grad():
        print(f"student held-out cross-entropy {F.cross_entropy(student.eval()(vx), vy).item():.4f}")


if __name__ == "__main__":
    main()
