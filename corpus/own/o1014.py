import torch
import torch.nn.functional as F

torch.manual_seed(21)
C, DIM, PROTO = 10, 24, 4
centers = torch.randn(C * PROTO, DIM) * 1.1


def sample(n):
    k = torch.randint(0, C * PROTO, (n,))
    return centers[k] + 0.75 * torch.randn(n, DIM), k // PROTO


class FusedCrossEntropy(torch.autograd.Function):
    """Softmax and NLL in one pass; the gradient of the logits is formed in the forward, in place."""

    @staticmethod
    def forward(ctx, logits, target):
        n = logits.size(0)
        p = logits.detach().clone()
        p -= p.max(1, keepdim=True).values
        p.exp_()
        p /= p.sum(1, keepdim=True)
        rows = torch.arange(n)
        loss = -p[rows, target].clamp_min(1e-12).log().mean()
        p[rows, target] -= 1.0
        p /= n
        ctx.save_for_backward(p)
        return loss

    @staticmethod
    def backward(ctx, grad_out):
        grad, = ctx.saved_tensors
        return grad, None


def fused_ce(logits, target):
    return FusedCrossEntropy.apply(logits, target)


def init_mlp(sizes):
    ps = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        ps += [(torch.randn(a, b) * (2.0 / a) ** 0.5).requires_grad_(), torch.zeros(b, requires_grad=True)]
    return ps


def mlp(ps, x):
    for i in range(0, len(ps) - 2, 2):
        x = F.relu(x @ ps[i] + ps[i + 1])
    return x @ ps[-2] + ps[-1]


@torch.no_grad()
def accuracy(ps, x, y):
    return (mlp(ps, x).argmax(1) == y).float().mean().item()


xt, yt = sample(6000)
xv, yv = sample(3000)
teacher = init_mlp([DIM, 256, 256, C])
opt = torch.optim.Adam(teacher, lr=2e-3)
for step in range(250):
    i = torch.randint(0, len(xt), (128,))
    loss = fused_ce(mlp(teacher, xt[i]), yt[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(f"teacher step {step:3d} loss {loss.item():.4f} val acc {accuracy(teacher, xv, yv):.3f}")
for p in teacher:
    p.requires_grad_(False)
print(f"teacher val acc {accuracy(teacher, xv, yv):.3f}")

xs, ys = sample(800)
flip = torch.rand(len(ys)) < 0.4
ys = torch.where(flip, torch.randint(0, C, ys.shape), ys)

student = init_mlp([DIM, 192, 192, C])
opt = torch.optim.Adam(student, lr=2e-3)
T, alpha, accum, steps = 2.0, 0.1, 4, 300
for step in range(steps):
    opt.zero_grad()
    log_hard = log_soft = 0.0
    for _ in range(accum):
        i = torch.randint(0, len(xs), (32,))
        logits = mlp(student, xs[i])
        with torch.no_grad():
            soft = F.softmax(mlp(teacher, xs[i]) / T, dim=1)
        kd = F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
        hard = fused_ce(logits, ys[i])
        loss = alpha * hard + (1 - alpha) * kd
        (loss / accum).backward()
        log_hard += hard.item() / accum
        log_soft += kd.item() / accum
    opt.step()
    if step % 25 == 0 or step == steps - 1:
        total = alpha * log_hard + (1 - alpha) * log_soft
        print(f"student step {step:3d} loss {total:.4f} (hard {log_hard:.4f} kd {log_soft:.4f}) "
              f"val acc {accuracy(student, xv, yv):.3f}")
