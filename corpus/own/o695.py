import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

V, P, R = 16, 6, 6
PAD = 0


def respond(prompt, good, gen):
    n = len(prompt)
    step = 2 if good else 1
    start = prompt[:, -1:]
    resp = (start + step * torch.arange(1, R + 1)) % (V - 1) + 1
    flip = torch.rand(n, R, generator=gen) < 0.05
    resp = torch.where(flip, torch.randint(1, V, (n, R), generator=gen), resp)
    length = torch.randint(3, R + 1, (n, 1), generator=gen)
    return resp.masked_fill(torch.arange(R) >= length, PAD)


class TinyLM(nn.Module):
    def __init__(self, dim=48, heads=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(V, dim)
        self.pos = nn.Parameter(torch.randn(P + R, dim) * 0.1)
        mk = lambda: nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(mk() for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.emb.weight, std=0.15)

    def forward(self, ids):
        t = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.emb(ids) + self.pos[:t]
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.norm(h) @ self.emb.weight.T


def response_logp(model, prompt, resp):
    ids = torch.cat([prompt, resp], 1)
    logits = model(ids[:, :-1])[:, P - 1 :]
    logp = logits.log_softmax(-1).gather(-1, resp.unsqueeze(-1)).squeeze(-1)
    keep = (resp != PAD).float()
    return (logp * keep).sum(1), keep.sum(1)


class RMSProp:

    def __init__(self, params, lr, rho=0.99, eps=1e-8, warmup=10):
        self.params = list(params)
        self.lr, self.rho, self.eps, self.warmup, self.t = lr, rho, eps, warmup, 0
        self.sq = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        lr = self.lr * min(1.0, self.t / self.warmup)
        fix = 1 - self.rho**self.t
        for p, s in zip(self.params, self.sq):
            s.mul_(self.rho).addcmul_(p.grad, p.grad, value=1 - self.rho)
            p.addcdiv_(p.grad, (s / fix).sqrt().add_(self.eps), value=-lr)


def sft(model, gen, steps=150):
    opt = RMSProp(model.parameters(), 2e-3)
    for step in range(steps):
        prompt = torch.randint(1, V, (32, P), generator=gen)
        half = torch.cat([respond(prompt[:16], True, gen), respond(prompt[16:], False, gen)])
        lp, n = response_logp(model, prompt, half)
        loss = -lp.sum() / n.sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 25 == 0 or step == steps - 1:
            print(f"sft step {step:4d} loss {loss.item():.4f}")


def dpo(model, gen, steps=120, beta=0.1):
    ref = copy.deepcopy(model).eval().requires_grad_(False)
    opt = RMSProp(model.parameters(), 2e-4)
    for step in range(steps):
        prompt = torch.randint(1, V, (24, P), generator=gen)
        win, lose = respond(prompt, True, gen), respond(prompt, False, gen)
        both_p, both_r = prompt.repeat(2, 1), torch.cat([win, lose])
        lp, _ = response_logp(model, both_p, both_r)
        with torch.no_grad():
            ref_lp, _ = response_logp(ref, both_p, both_r)
        margin = beta * (lp - ref_lp)
        gap = margin[:24] - margin[24:]
        loss = -F.logsigmoid(gap).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"dpo step {step:4d} loss {loss.item():.4f} accuracy {(gap > 0).float().mean():.2f}")


@torch.no_grad()
def liked(model, gen):
    prompt = torch.randint(1, V, (300, P), generator=gen)
    first = model(prompt)[:, -1].log_softmax(-1)
    good = (prompt[:, -1] + 2) % (V - 1) + 1
    return first.gather(1, good[:, None]).exp().mean().item()


torch.manual_seed(0)
g = torch.Generator().manual_seed(0)
lm = TinyLM()
sft(lm, g)
print(f"probability of the liked first symbol after SFT: {liked(lm, g):.3f}")
dpo(lm, g)
print(f"probability of the liked first symbol after DPO: {liked(lm, g):.3f}")
