from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, SEQ, CLASSES = 60, 20, 48


def make_rule(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, 24, generator=g), torch.randn(24, CLASSES, generator=g)


def draw(n, rule, g, noise=0.0):
    vec, mix = rule
    x = torch.randint(VOCAB, (n, SEQ), generator=g)
    weight = torch.linspace(0.2, 1.0, SEQ)[None, :, None]
    y = ((vec[x] * weight).mean(1) @ mix).argmax(-1)
    flip = torch.rand(n, generator=g) < noise
    return x, torch.where(flip, torch.randint(CLASSES, (n,), generator=g), y), y


def encoder(dim, layers, heads):
    layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.ModuleDict({"emb": nn.Embedding(VOCAB, dim), "pos": nn.Embedding(SEQ, dim), "body": body,
                          "norm": nn.LayerNorm(dim), "head": nn.Linear(dim, CLASSES)})


def apply(net, x):
    h = net["body"](net["emb"](x) + net["pos"](torch.arange(x.size(1))))
    return net["head"](net["norm"](h.mean(1)))


def hard_loss(net, x, y):
    return F.cross_entropy(apply(net, x), y)


def distill_loss(net, x, y, teacher, alpha=0.9, temperature=3.0):
    criterion = nn.KLDivLoss(reduction="batchmean")
    with torch.no_grad():
        target = F.softmax(apply(teacher, x) / temperature, dim=1)
    logits = apply(net, x)
    soft = criterion(F.log_softmax(logits / temperature, dim=1), target)
    return F.cross_entropy(logits, y) * (1.0 - alpha) + soft * (alpha * temperature * temperature)


@torch.no_grad()
def accuracy(net, x, y):
    net.eval()
    score = (apply(net, x).argmax(-1) == y).float().mean().item()
    net.train()
    return score


def run(net, objective, batches, lr, steps, test, label):
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for i in range(steps):
        loss = objective(net, *next(batches))
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if (i + 1) % 25 == 0:
            print(f"{label} {i + 1:4d} loss {loss.item():.4f} clean test acc {accuracy(net, *test):.3f}")
    return net


def fresh(rule, g, bs):
    while True:
        x, y, _ = draw(bs, rule, g)
        yield x, y


def epochs(x, y, g, bs):
    while True:
        for part in torch.randperm(len(x), generator=g).split(bs):
            if len(part) == bs:
                yield x[part], y[part]


if __name__ == "__main__":
    torch.manual_seed(31)
    rule = make_rule(2)
    tx, _, ty = draw(1000, rule, torch.Generator().manual_seed(90))
    teacher = run(encoder(64, 1, 4), hard_loss, fresh(rule, torch.Generator().manual_seed(3), 96), 4e-3, 200,
                  (tx, ty), "teacher")
    teacher.eval().requires_grad_(False)
    sx, noisy, _ = draw(900, rule, torch.Generator().manual_seed(6), noise=0.5)
    student = encoder(40, 1, 4)
    student = run(student, partial(distill_loss, teacher=teacher),
                  epochs(sx, noisy, torch.Generator().manual_seed(8), 48), 4e-3, 200, (tx, ty), "student")
    with torch.no_grad():
        same = (apply(student, tx).argmax(-1) == apply(teacher, tx).argmax(-1)).float().mean().item()
    print(f"student agrees with teacher on {same:.3f} of test inputs")
