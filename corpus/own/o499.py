import math, torch

torch.manual_seed(17)
sizes = [1, 40, 40, 1]
theta = []
for i, o in zip(sizes[:-1], sizes[1:]):
    gain = 0.3 if i == 1 or o == 1 else 1.0
    w = torch.randn(i, o) * gain * math.sqrt(2 / i)
    b = torch.randn(o) * (1.0 if i == 1 else 0.0)
    theta += [w.requires_grad_(), b.requires_grad_()]

def f(x, p):

    for k in range(0, len(p), 2):
        w, b = p[k], p[k + 1]
        x = x @ w + (b if b.dim() == 1 else b.unsqueeze(1))
        if k + 2 < len(p):
            x = torch.relu(x)
    return x

def tasks(m, k):
    amp = torch.rand(m, 1, 1) * 4.9 + 0.1
    ph = torch.rand(m, 1, 1) * math.pi
    x = torch.rand(m, 2 * k, 1) * 10 - 5
    y = amp * torch.sin(x - ph)
    return x[:, :k], y[:, :k], x[:, k:], y[:, k:]

def adapt(p, xs, ys, inner_lr, n, create_graph):
    m = xs.size(0)
    fast = [q.expand(m, *q.shape) for q in p]
    if not create_graph:
        fast = [q.detach().clone().requires_grad_() for q in fast]
    for _ in range(n):

        l = ((f(xs, fast) - ys) ** 2).mean(dim=(1, 2)).sum()
        g = torch.autograd.grad(l, fast, create_graph=create_graph)
        fast = [q - inner_lr * gg for q, gg in zip(fast, g)]
        if not create_graph:
            fast = [q.detach().requires_grad_() for q in fast]
    return fast

opt = torch.optim.Adam(theta, lr=2e-3)
ev = tasks(100, 10)
run_pre = run_post = None
for it in range(600):
    xs, ys, xq, yq = tasks(16, 10)
    fast = adapt(theta, xs, ys, 0.01, 1, True)
    meta = ((f(xq, fast) - yq) ** 2).mean()
    opt.zero_grad()
    meta.backward()
    torch.nn.utils.clip_grad_norm_(theta, 10.0)
    opt.step()
    run_post = meta.item() if run_post is None else 0.95 * run_post + 0.05 * meta.item()
    if it % 50 == 0 or it == 599:
        xs, ys, xq, yq = ev
        with torch.no_grad():
            before = ((f(xq, [p.detach() for p in theta]) - yq) ** 2).mean().item()
        fast = adapt(theta, xs, ys, 0.01, 5, False)
        with torch.no_grad():
            after = ((f(xq, fast) - yq) ** 2).mean().item()

        print(f"iter {it:4d} meta loss {run_post:.4f} | eval before {before:.3f} after 5 inner steps {after:.3f}")
