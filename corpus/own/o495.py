import torch
from torch import nn
import torch.nn.functional as F


def make_task(n, g):
    x = torch.randn(n, 20, generator=g)
    w = torch.randn(20, 10, generator=torch.Generator().manual_seed(500))
    v = torch.randn(20, 10, generator=torch.Generator().manual_seed(501))
    y = (torch.tanh(x @ w * 0.3) + 0.5 * torch.sin(x @ v * 0.25)).argmax(1)
    return x, y


def accuracy(m, x, y):
    m.eval()
    with torch.no_grad():
        a = (m(x).argmax(1) == y).float().mean().item()
    m.train()
    return a


def loader(x, y, bs):
    p = torch.randperm(len(x))
    for i in range(0, len(x) - bs + 1, bs):
        yield x[p[i:i + bs]], y[p[i:i + bs]]


def main():
    torch.manual_seed(50)
    g = torch.Generator().manual_seed(50)
    x, y = make_task(8000, g)
    xv, yv = make_task(2000, g)
    teacher = nn.Sequential(nn.Linear(20, 192), nn.ReLU(), nn.Dropout(0.1), nn.Linear(192, 192), nn.ReLU(), nn.Dropout(0.1), nn.Linear(192, 10))
    opt = torch.optim.SGD(teacher.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    E = 10
    sch = torch.optim.lr_scheduler.OneCycleLR(opt, 0.05, total_steps=E * (8000 // 100))
    for ep in range(E):
        tot = 0
        for xb, yb in loader(x, y, 100):
            loss = F.cross_entropy(teacher(xb), yb, label_smoothing=0.1)
            opt.zero_grad(); loss.backward(); opt.step(); sch.step()
            tot += loss.item()
        print(f"[teacher] epoch {ep} loss {tot / 80:.4f} val acc {accuracy(teacher, xv, yv):.3f}")

    teacher.eval()
    teacher.requires_grad_(False)
    student = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    T = 3.0
    for ep in range(10):
        tot = 0
        for xb, _ in loader(x, y, 100):
            soft = F.softmax(teacher(xb) / T, -1)
            loss = F.kl_div(F.log_softmax(student(xb) / T, -1), soft, reduction="batchmean") * T * T
            opt.zero_grad(); loss.backward(); opt.step()
            tot += loss.item()
        print(f"[student] epoch {ep} loss {tot / 80:.4f} val acc {accuracy(student, xv, yv):.3f}")


if __name__ == "__main__":
    main()
