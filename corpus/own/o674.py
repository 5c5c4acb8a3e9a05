import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(40)
AA, MASK, PAD = 20, 20, 21
LENGTH, DIM, LOOPS = 36, 48, 4


def families(n, seed):
    rng = np.random.default_rng(seed)
    base = np.random.default_rng(77)
    anc = base.integers(0, AA, (5, LENGTH))
    partner = base.permutation(AA)
    seqs, lens = np.full((n, LENGTH), PAD), rng.integers(24, LENGTH + 1, n)
    for i in range(n):
        s = anc[rng.integers(5)].copy()
        hit = rng.random(LENGTH) < 0.25
        s[hit] = rng.integers(0, AA, hit.sum())
        half = LENGTH // 3
        s[half:2 * half] = partner[s[:half]]
        seqs[i, :lens[i]] = s[:lens[i]]
    return torch.from_numpy(seqs)


class SharedEncoder(nn.Module):

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(AA + 2, DIM, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        self.depth = nn.Parameter(torch.zeros(LOOPS, DIM))
        self.layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.bias = nn.Parameter(torch.zeros(AA))
        nn.init.normal_(self.emb.weight, std=0.15)

    def forward(self, tok):
        pad = tok == PAD
        h = self.emb(tok) + self.pos
        for d in self.depth:
            h = self.layer(h + d, src_key_padding_mask=pad)
        return self.norm(h) @ self.emb.weight[:AA].t() + self.bias


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr, betas=(0.9, 0.98), eps=1e-6, wd=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, wd=wd))

    @torch.no_grad()
    def step(self, closure=None):
        for g in self.param_groups:
            b1, b2 = g["betas"]
            for p in g["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["t"], st["m"], st["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                st["t"] += 1
                st["m"].lerp_(p.grad, 1 - b1)
                st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                u = (st["m"] / (1 - b1 ** st["t"])) / ((st["v"] / (1 - b2 ** st["t"])).sqrt() + g["eps"])
                if p.ndim > 1:
                    u = u + g["wd"] * p
                wn, un = p.norm(), u.norm()
                ratio = (wn / un).clamp(0.02, 10.0) if p.ndim > 1 and wn > 0 else 0.1
                p.add_(u * ratio, alpha=-g["lr"])


def corrupt(tok, gen, rate=0.2):
    pick = (torch.rand(tok.shape, generator=gen) < rate) & (tok != PAD)
    target = torch.where(pick, tok, torch.full_like(tok, -100))
    return torch.where(pick, torch.full_like(tok, MASK), tok), target


def main(steps=220, batch=32):
    train, test = families(3000, 1), families(400, 2)
    model = SharedEncoder()
    opt = Lamb(model.parameters(), lr=2e-2)
    gen = torch.Generator().manual_seed(3)
    for step in range(steps):
        for g in opt.param_groups:
            g["lr"] = 2e-2 * min((step + 1) / 20, 1.0) * (1 - step / steps) ** 0.5
        tok, target = corrupt(train[torch.randint(0, len(train), (batch,), generator=gen)], gen)
        loss = F.cross_entropy(model(tok).transpose(1, 2), target, ignore_index=-100)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d}  masked nll {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        tok, target = corrupt(test, gen)
        out = model(tok)
        sel = target != -100
        acc = (out.argmax(-1)[sel] == target[sel]).float().mean()
    print(f"held-out recovery {acc:.3f} (chance {1 / AA:.3f})")


if __name__ == "__main__":
    main()
