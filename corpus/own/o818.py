import torch
import torch.nn.functional as F

torch.manual_seed(4)
torch.set_num_threads(1)
CLS, DIM, IPC = 5, 20, 3

basis = torch.randn(CLS, 2, DIM)


def real(n, y=None):
    y = torch.randint(0, CLS, (n,)) if y is None else y
    a = torch.randn(len(y), 2)
    side = torch.where(torch.rand(len(y)) < 0.5, 1.0, -1.0)[:, None]
    x = side * basis[y, 0] * 1.3 + (a[:, :1] * basis[y, 1]) * 0.6 + 0.8 * torch.randn(len(y), DIM)
    return x, y


def fresh(h=48):
    ws = [torch.randn(DIM, h) / DIM ** 0.5, torch.zeros(h), torch.randn(h, CLS) / h ** 0.5, torch.zeros(CLS)]
    return [w.requires_grad_() for w in ws]


def apply(ws, x):
    return F.softplus(x @ ws[0] + ws[1]) @ ws[2] + ws[3]


def soft_ce(logits, t):
    return -(t * logits.log_softmax(1)).sum(1).mean()


def evaluate(sx, sl, reps=3, steps=120):
    xt, yt = real(2000)
    accs = []
    for _ in range(reps):
        ws = fresh()
        o = torch.optim.Adam(ws, lr=0.02)
        for _ in range(steps):
            loss = soft_ce(apply(ws, sx), sl)
            o.zero_grad()
            loss.backward()
            o.step()
        with torch.no_grad():
            accs.append((apply(ws, xt).argmax(1) == yt).float().mean().item())
    return sum(accs) / reps


lab = torch.arange(CLS).repeat_interleave(IPC)
sx = real(CLS * IPC, lab)[0].requires_grad_()
sl = (4.0 * F.one_hot(lab, CLS).float()).requires_grad_()
opt = torch.optim.Adam([{"params": [sx], "lr": 0.03}, {"params": [sl], "lr": 0.02}])
print(f"starting images: test acc {evaluate(sx.detach(), sl.detach().softmax(1)):.3f}")

outer = 0
for episode in range(45):
    ws = fresh()
    inner = torch.optim.SGD(ws, lr=0.3)
    for t in range(8):
        xr, yr = real(256)
        gr = torch.autograd.grad(F.cross_entropy(apply(ws, xr), yr), ws)
        gs = torch.autograd.grad(soft_ce(apply(ws, sx), sl.softmax(1)), ws, create_graph=True)
        match = sum((1 - F.cosine_similarity(a.flatten(), b.flatten(), dim=0)) + 2 * (a - b).pow(2).sum() for a, b in zip(gr, gs))
        opt.zero_grad()
        match.backward()
        opt.step()
        outer += 1
        loss = soft_ce(apply(ws, sx.detach()), sl.detach().softmax(1))
        inner.zero_grad()
        loss.backward()
        inner.step()
    if episode % 5 == 0 or episode == 44:
        print(f"episode {episode:2d} outer step {outer} match {match.item():.4f} inner loss {loss.item():.4f}")
print(f"distilled images: test acc {evaluate(sx.detach(), sl.detach().softmax(1)):.3f}")
xr, yr = real(IPC * CLS, lab)
print(f"{IPC} random real examples per class: test acc {evaluate(xr, F.one_hot(lab, CLS).float()):.3f}")
