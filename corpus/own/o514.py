import argparse
import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--n", type=int, default=40000)
    p.add_argument("--features", type=int, default=120)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--l2", type=float, default=1e-4)
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def synth(n, d, g):
    x = torch.randn(n, d, generator=g)
    x[:, d // 2:] = (x[:, d // 2:] > 0.8).float()
    beta = torch.randn(d, generator=g) * 0.35
    logit = x @ beta
    logit = logit - logit.mean() - 4.6
    y = (torch.rand(n, generator=g) < torch.sigmoid(logit)).float()
    return x, y


def average_precision(score, y):
    order = score.argsort(descending=True)
    y = y[order]
    prec = y.cumsum(0) / torch.arange(1, len(y) + 1)
    return ((prec * y).sum() / y.sum()).item()


def main():
    a = parse()
    torch.manual_seed(a.seed)
    g = torch.Generator().manual_seed(a.seed)
    x, y = synth(a.n, a.features, g)
    n_tr = int(0.75 * a.n)
    xtr, ytr, xte, yte = x[:n_tr], y[:n_tr], x[n_tr:], y[n_tr:]
    m, s = xtr.mean(0), xtr.std(0)
    xtr, xte = (xtr - m) / s, (xte - m) / s

    pi = ytr.mean()
    class_w = torch.stack([0.5 / (1 - pi), 0.5 / pi])
    print(f"positives {pi:.3%}  class weights {class_w.tolist()}")

    loader = DataLoader(TensorDataset(xtr, ytr), batch_size=a.batch_size, shuffle=True,
                        drop_last=True, generator=g)
    W = torch.zeros(a.features, requires_grad=True)
    b = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([{"params": [W], "weight_decay": a.l2},
                           {"params": [b], "weight_decay": 0.0}],
                          lr=a.lr, momentum=0.9)
    total = a.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda t: 0.5 * (1 + math.cos(math.pi * t / total)))

    step, run = 0, 0.0
    for epoch in range(a.epochs):
        for xb, yb in loader:
            logits = xb @ W + b
            wt = class_w[yb.long()]
            loss = (wt * F.binary_cross_entropy_with_logits(logits, yb, reduction="none")).mean()
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            run = loss.item() if step == 0 else 0.95 * run + 0.05 * loss.item()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step:4d} weighted loss {loss.item():.4f} (smoothed {run:.4f})")
            step += 1

    with torch.no_grad():
        s_te = xte @ W + b
        pred = (s_te > 0).float()
        tpr = pred[yte == 1].mean()
        tnr = 1 - pred[yte == 0].mean()
        prob = torch.sigmoid(s_te + torch.log(class_w[0] / class_w[1]))
        print(f"final smoothed loss {run:.4f} after {step} steps")
        print(f"test balanced accuracy {(tpr + tnr) / 2:.4f}  AP {average_precision(s_te, yte):.4f} (chance {yte.mean():.4f})")
        print(f"mean predicted risk {prob.mean():.4f}  observed {yte.mean():.4f}")


if __name__ == "__main__":
    main()
