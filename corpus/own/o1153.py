import math
import torch
import torch.nn.functional as F
from torch.func import grad_and_value, vmap

torch.set_num_threads(1)
torch.manual_seed(2)
NODES, D, H, L, HOPS = 16, 48, 4, 4, 5


def graphs(n):
    up = torch.rand(n, NODES, NODES) < 0.11
    adj = up.triu(1)
    adj = adj | adj.transpose(1, 2)
    src = torch.randint(0, NODES, (n,))
    dist = torch.full((n, NODES), HOPS)
    seen = F.one_hot(src, NODES).bool()
    dist[seen] = 0
    for d in range(1, HOPS):
        new = (adj & seen[:, None]).any(-1) & ~seen
        dist[new] = d
        seen = seen | new
    return adj.float(), F.one_hot(src, NODES).float(), dist


def rnd(*s, scale=1.0):
    return torch.randn(*s) * scale / math.sqrt(s[0])


params = dict(
    mark=torch.randn(2, D) * 0.5,
    deg=torch.randn(D) * 0.1,
    layers=[dict(
        q=rnd(D, H, D // H), k=rnd(D, H, D // H), v=rnd(D, H, D // H),
        o=rnd(D, D, scale=0.6), edge=1.0 + torch.rand(H), self_=torch.randn(H),
        up=rnd(D, 3 * D), ub=torch.zeros(3 * D), down=rnd(3 * D, D, scale=0.6),
        n1=torch.ones(D), n2=torch.ones(D)) for _ in range(L)],
    out=rnd(D, HOPS + 1, scale=0.3), ob=torch.zeros(HOPS + 1),
)


def norm(x, g):
    return F.layer_norm(x, x.shape[-1:]) * g


def single(p, adj, src):
    x = p["mark"][0] + src[:, None] * (p["mark"][1] - p["mark"][0]) + adj.sum(-1)[:, None] / 3 * p["deg"]
    eye = torch.eye(NODES)
    for b in p["layers"]:
        h = norm(x, b["n1"])
        q, k, v = (torch.einsum("id,dhe->hie", h, b[c]) for c in "qkv")
        s = torch.einsum("hie,hje->hij", q, k) / math.sqrt(D // H)
        s = s + b["edge"][:, None, None] * (4 * adj - 2) + b["self_"][:, None, None] * eye
        w = torch.softmax(s, -1)
        x = x + torch.einsum("hij,hie->ihe", w, v).reshape(NODES, D) @ b["o"]
        x = x + F.gelu(norm(x, b["n2"]) @ b["up"] + b["ub"]) @ b["down"]
    return norm(x, torch.ones(D)) @ p["out"] + p["ob"]


def loss_fn(p, adj, src, dist, smooth=0.02):
    z = vmap(single, in_dims=(None, 0, 0))(p, adj, src)
    lp = z - torch.logsumexp(z, -1, keepdim=True)
    hit = lp.gather(-1, dist[..., None]).squeeze(-1)
    return -((1 - smooth) * hit + smooth * lp.mean(-1)).mean()


flat, spec = torch.utils._pytree.tree_flatten(params)
mom = [torch.zeros_like(p) for p in flat]
sec = [torch.zeros_like(p) for p in flat]
value_grad = grad_and_value(loss_fn)
STEPS = 260
for step in range(1, STEPS + 1):
    g, loss = value_grad(torch.utils._pytree.tree_unflatten(flat, spec), *graphs(32))
    g = torch.utils._pytree.tree_flatten(g)[0]
    lr = 3e-3 * min(1, step / 25) * (1.02 - step / STEPS)
    torch._foreach_lerp_(mom, g, 0.1)
    torch._foreach_mul_(sec, 0.98)
    torch._foreach_addcmul_(sec, g, g, 0.02)
    den = torch._foreach_sqrt(sec)
    torch._foreach_add_(den, 1e-8)
    corr = math.sqrt(1 - 0.98 ** step) / (1 - 0.9 ** step)
    torch._foreach_addcdiv_(flat, mom, den, -lr * corr)
    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4), flush=True)

adj, src, dist = graphs(300)
z = vmap(single, in_dims=(None, 0, 0))(torch.utils._pytree.tree_unflatten(flat, spec), adj, src)
print("node accuracy", round((z.argmax(-1) == dist).float().mean().item(), 4))
