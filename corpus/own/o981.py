import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
V, D, T_PROMPT, T_RESP = 40, 64, 8, 10
BETA, NLL = 0.3, 0.3
GOOD, BAD = torch.arange(4, 12), torch.arange(12, 20)


class LoRA(nn.Linear):
    """linear layer with a switchable low-rank update"""

    enabled = True

    def add_adapter(self, r, alpha):
        self.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, self.in_features) / r)
        self.b = nn.Parameter(torch.zeros(self.out_features, r))
        self.alpha = alpha / r

    def forward(self, x):
        y = F.linear(x, self.weight)
        if hasattr(self, "a") and LoRA.enabled:
            y = y + self.alpha * F.linear(F.linear(x, self.a), self.b)
        return y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.q, self.k, self.v, self.o = (LoRA(D, D, bias=False) for _ in range(4))
        self.up, self.down = LoRA(D, 4 * D, bias=False), LoRA(4 * D, D, bias=False)

    def forward(self, x):
        h = self.n1(x)
        q, k, v = (f(h).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Embedding(T_PROMPT + T_RESP, D)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.RMSNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.emb(ids) + self.pos.weight[: ids.size(1)])))

    @contextlib.contextmanager
    def reference(self):
        LoRA.enabled = False
        try:
            with torch.no_grad():
                yield self
        finally:
            LoRA.enabled = True


def prompts(n):
    return torch.randint(20, V, (n, T_PROMPT))


def replies(p, flavour):
    """echo parts of the prompt and season it with words of one flavour"""
    n = len(p)
    r = p[:, torch.arange(T_RESP) % T_PROMPT].clone()
    season = flavour[torch.randint(len(flavour), (n, T_RESP))]
    return torch.where(torch.rand(n, T_RESP) < 0.3, season, r)


def response_logp(model, p, r):
    ids = torch.cat([p, r], 1)
    lp = model(ids)[:, :-1].log_softmax(-1)
    lp = lp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return lp[:, T_PROMPT - 1 :].sum(-1)


def sft(model, steps=150):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for i in range(steps):
        p = prompts(32)
        flavour = GOOD if i % 2 else BAD
        loss = -response_logp(model, p, replies(p, flavour)).mean() / T_RESP
        opt.zero_grad()
        loss.backward()
        opt.step()
        if i % 25 == 0 or i == steps - 1:
            print(f"sft {i:3d} loss {loss.item():.4f}")


def dpo(model, steps=150):
    for p in model.parameters():
        p.requires_grad_(False)
    for m in model.modules():
        if isinstance(m, LoRA):
            m.add_adapter(r=8, alpha=16)
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=5e-4, weight_decay=0.0)
    for i in range(steps):
        p = prompts(32)
        chosen, rejected = replies(p, GOOD), replies(p, BAD)
        pc, pr = response_logp(model, p, chosen), response_logp(model, p, rejected)
        with model.reference() as ref:
            rc, rr = response_logp(ref, p, chosen), response_logp(ref, p, rejected)
        margin = BETA * ((pc - rc) - (pr - rr))
        loss = -F.logsigmoid(margin).mean() - NLL * pc.mean() / T_RESP
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if i % 15 == 0 or i == steps - 1:
            print(f"dpo {i:3d} loss {loss.item():.4f} margin {margin.mean().item():+.3f} acc {(margin > 0).float().mean():.3f} "
                  f"logp chosen {pc.mean().item():.2f} rejected {pr.mean().item():.2f}")


@torch.no_grad()
def flavour_rate(model, n=200):
    ids = prompts(n)
    for _ in range(T_RESP):
        ids = torch.cat([ids, torch.multinomial(model(ids)[:, -1].softmax(-1), 1)], 1)
    r = ids[:, T_PROMPT:]
    return torch.isin(r, GOOD).float().mean().item(), torch.isin(r, BAD).float().mean().item()


model = LM()
sft(model)
print("good/bad words per token before: %.3f / %.3f" % flavour_rate(model))
dpo(model)
print("good/bad words per token after:  %.3f / %.3f" % flavour_rate(model))
