import math
import time
import torch
import torch.nn.functional as F

torch.manual_seed(1)
BASES = "ACGT"
T, D, HEADS, LAYERS, WIDTH = (60, 64, 4, 2, 5)
CODONS = torch.randperm(64, generator=torch.Generator().manual_seed(4))[:24]
NEXT = torch.stack(
    [CODONS[torch.randperm(24, generator=torch.Generator().manual_seed(i))[:3]] for i in range(64)]
)


def genes(n, g):
    cod = torch.empty(n, T // 3 + 1, dtype=torch.long)
    cod[:, 0] = CODONS[torch.randint(24, (n,), generator=g)]
    for i in range(1, cod.size(1)):
        cod[:, i] = NEXT[cod[:, i - 1], torch.randint(3, (n,), generator=g)]
    bases = torch.stack([cod // 16, cod // 4 % 4, cod % 4], dim=-1).flatten(1)
    return bases[:, : T + 1]


def accepted(seq):
    c = seq[:, : seq.size(1) // 3 * 3].view(len(seq), -1, 3)
    c = c[..., 0] * 16 + c[..., 1] * 4 + c[..., 2]
    return (NEXT[c[:, :-1]] == c[:, 1:, None]).any(-1).float().mean().item()


def init():

    def mat(i, o, gain=1.0):
        return torch.randn(i, o) * gain / math.sqrt(i)

    w = {
        "emb": torch.randn(5, D) * 0.3,
        "pos": torch.randn(T, D) * 0.1,
        "gf": torch.ones(D),
        "out": mat(D, 4, 0.5),
    }
    for l in range(LAYERS):
        w[f"{l}.conv"] = torch.randn(D, 1, WIDTH) / WIDTH
        w[f"{l}.g1"], w[f"{l}.g2"] = (torch.ones(D), torch.ones(D))
        w[f"{l}.qkv"], w[f"{l}.o"] = (mat(D, 3 * D), mat(D, D, 0.5))
        w[f"{l}.up"], w[f"{l}.down"] = (mat(D, 2 * D), mat(2 * D, D, 0.5))
    return {k: v.requires_grad_() for k, v in w.items()}


def rms(x, gain):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-06) * gain


def short_conv(x, kernel):
    y = F.pad(x.transpose(1, 2), (WIDTH - 1, 0))
    return F.conv1d(y, kernel, groups=D).transpose(1, 2)


def forward(w, ids):
    B, L = ids.shape
    x = w["emb"][ids] + w["pos"][:L]
    future = torch.full((L, L), float("-inf")).triu(1)
    for l in range(LAYERS):
        h = rms(x, w[f"{l}.g1"])
        h = h + short_conv(h, w[f"{l}.conv"])
        q, k, v = (h @ w[f"{l}.qkv"]).view(B, L, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        att = torch.softmax(q @ k.mT / math.sqrt(D // HEADS) + future, dim=-1)
        x = x + (att @ v).transpose(1, 2).reshape(B, L, D) @ w[f"{l}.o"]
        x = x + F.silu(rms(x, w[f"{l}.g2"]) @ w[f"{l}.up"]) @ w[f"{l}.down"]
    return rms(x, w["gf"]) @ w["out"]


class Adam:
    def __init__(self, weights, lr, betas=(0.9, 0.98), eps=1e-08):
        self.w, self.lr, self.betas, self.eps, self.t = (weights, lr, betas, eps, 0)
        self.m = {k: torch.zeros_like(v) for k, v in weights.items()}
        self.v = {k: torch.zeros_like(v) for k, v in weights.items()}

    @torch.no_grad()
    def step(self, grads):
        self.t += 1
        b1, b2 = self.betas
        lr = self.lr * min(1.0, self.t / 30)
        for (k, p), g in zip(self.w.items(), grads):
            self.m[k].mul_(b1).add_(g, alpha=1 - b1)
            self.v[k].mul_(b2).addcmul_(g, g, value=1 - b2)
            mh = self.m[k] / (1 - b1**self.t)
            vh = self.v[k] / (1 - b2**self.t)
            p.sub_(lr * mh / (vh.sqrt() + self.eps))


def batch(n, g):
    seq = genes(n, g)
    ids = torch.cat([torch.full((n, 1), 4), seq[:, : T - 1]], dim=1)
    return (ids, seq[:, :T])


@torch.no_grad()
def sample(w, n, g):
    ids = torch.full((n, 1), 4)
    for _ in range(T - 1):
        p = forward(w, ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], dim=1)
    return ids[:, 1:]


if __name__ == "__main__":
    w = init()
    print(sum((p.numel() for p in w.values())), "parameters")
    opt = Adam(w, lr=0.002)
    g = torch.Generator().manual_seed(10)
    t0 = time.time()
    for step in range(400):
        ids, target = batch(32, g)
        loss = F.cross_entropy(forward(w, ids).flatten(0, 1), target.flatten())
        grads = torch.autograd.grad(loss, list(w.values()))
        opt.step(grads)
        if step % 40 == 0 or step == 399:
            print(f"{step:4d}  nats per base {loss.item():.4f}   {time.time() - t0:.1f}s")
    real, fake = (genes(100, g), sample(w, 100, g))
    noise = torch.randint(4, (100, T), generator=g)
    print(
        f"allowed codon steps: real {accepted(real):.3f}  sampled {accepted(fake):.3f}  uniform {accepted(noise):.3f}"
    )
