import math
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
g = torch.Generator().manual_seed(5)

HORIZON, CTX, D, HEADS, DEPTH = 24, 12, 64, 4, 3
DT = 0.25


def env_step(pos, vel, act):
    vel = 0.7 * vel + act.clamp(-1, 1) * DT
    return pos + vel, vel


def observe(pos, vel, goal):
    return torch.cat([pos, vel, goal], -1)


def controller(pos, vel, goal, skill):
    a = 1.6 * (goal - pos) - 1.2 * vel
    swirl = torch.stack([-a[:, 1], a[:, 0]], -1)
    a = skill * a + (1 - skill) * swirl
    return a.clamp(-1, 1)


def collect(n):
    pos = torch.rand(n, 2, generator=g) * 4 - 2
    goal = torch.rand(n, 2, generator=g) * 4 - 2
    vel = torch.zeros(n, 2)
    skill = torch.rand(n, 1, generator=g)
    S, A, R = [], [], []
    for _ in range(HORIZON):
        a = (controller(pos, vel, goal, skill) + 0.15 * torch.randn(n, 2, generator=g)).clamp(-1, 1)
        S.append(observe(pos, vel, goal))
        A.append(a)
        pos, vel = env_step(pos, vel, a)
        R.append(-(pos - goal).norm(dim=-1))
    R = torch.stack(R, 1)
    rtg = R.flip(1).cumsum(1).flip(1)
    return torch.stack(S, 1), torch.stack(A, 1), rtg[..., None] / 10.0


def dense(i, o, s=1.0):
    return (torch.randn(i, o, generator=g) * s / math.sqrt(i)).requires_grad_()


P = {
    "rtg": dense(1, D), "obs": dense(6, D), "act": dense(2, D),
    "time": (0.1 * torch.randn(CTX, D, generator=g)).requires_grad_(),
    "kind": (0.1 * torch.randn(3, D, generator=g)).requires_grad_(),
    "blocks": [{
        "qkv": dense(D, 3 * D), "o": dense(D, D, 0.4),
        "up": dense(D, 4 * D), "down": dense(4 * D, D, 0.4),
        "g1": torch.ones(D, requires_grad=True), "g2": torch.ones(D, requires_grad=True),
    } for _ in range(DEPTH)],
    "gf": torch.ones(D, requires_grad=True), "head": dense(D, 2, 0.1),
}


def leaves(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    it = tree.values() if isinstance(tree, dict) else tree
    return [x for sub in it for x in leaves(sub)]


def ln(x, gain):
    x = x - x.mean(-1, keepdim=True)
    return gain * x / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def policy(rtg, obs, act):
    B, T = obs.shape[:2]
    toks = torch.stack([rtg @ P["rtg"], obs @ P["obs"], act @ P["act"]], 2)
    toks = toks + P["time"][:T, None] + P["kind"]
    x = toks.reshape(B, 3 * T, D)
    n = 3 * T
    keep = torch.ones(n, n, dtype=torch.bool).tril()
    for b in P["blocks"]:
        q, k, v = (ln(x, b["g1"]) @ b["qkv"]).view(B, n, 3, HEADS, D // HEADS).unbind(2)
        s = torch.einsum("bihd,bjhd->bhij", q, k) * (D // HEADS) ** -0.5
        s = s.masked_fill(~keep, float("-inf"))
        x = x + torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v).reshape(B, n, D) @ b["o"]
        x = x + torch.nn.functional.gelu(ln(x, b["g2"]) @ b["up"]) @ b["down"]
    h = ln(x, P["gf"]).view(B, T, 3, D)
    return h[:, :, 1] @ P["head"]


def huber(err, delta=0.5):
    a = err.abs()
    return torch.where(a < delta, 0.5 * a * a, delta * (a - 0.5 * delta))


@torch.no_grad()
def rollout(n=128):
    gg = torch.Generator().manual_seed(99)
    pos = torch.rand(n, 2, generator=gg) * 4 - 2
    goal = torch.rand(n, 2, generator=gg) * 4 - 2
    vel = torch.zeros(n, 2)
    start = (pos - goal).norm(dim=-1)
    want = -(start * 6.0)[:, None] / 10.0
    O, A, W = [], [], []
    for _ in range(HORIZON):
        O.append(observe(pos, vel, goal))
        A.append(torch.zeros(n, 2))
        W.append(want)
        a = policy(torch.stack(W[-CTX:], 1), torch.stack(O[-CTX:], 1), torch.stack(A[-CTX:], 1))[:, -1]
        A[-1] = a.clamp(-1, 1)
        pos, vel = env_step(pos, vel, A[-1])
        want = want + (pos - goal).norm(dim=-1, keepdim=True) / 10.0
    return start.mean().item(), (pos - goal).norm(dim=-1).mean().item()


S, A, W = collect(4000)
opt = torch.optim.Adam(leaves(P), lr=1e-3, betas=(0.9, 0.98))
STEPS = 300
for it in range(1, STEPS + 1):
    lr = 1e-3 * min(it / 40, 1.0) * (1 - 0.9 * it / STEPS)
    opt.param_groups[0]["lr"] = lr
    rows = torch.randint(0, len(S), (32,), generator=g)
    t0 = int(torch.randint(0, HORIZON - CTX + 1, (1,), generator=g))
    sl = slice(t0, t0 + CTX)
    pred = policy(W[rows, sl], S[rows, sl], A[rows, sl])
    loss = huber(pred - A[rows, sl]).sum(-1).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if it % 25 == 0:
        print(f"iter {it} action_loss {loss.item():.5f}")
    if it % 150 == 0:
        s, e = rollout()
        print(f"  rollout: start distance {s:.3f} -> final {e:.3f}")
