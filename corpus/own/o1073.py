import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 24
    width: int = 48
    heads: int = 4
    layers: int = 2
    prompt_len: int = 4
    answer_len: int = 10
    sft_steps: int = 90
    dpo_steps: int = 120
    batch: int = 32
    rank: int = 8
    beta: float = 0.3
    seed: int = 7


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.ln1 = nn.LayerNorm(cfg.width)
        self.ln2 = nn.LayerNorm(cfg.width)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.proj = nn.Linear(cfg.width, cfg.width)
        self.up = nn.Linear(cfg.width, 4 * cfg.width)
        self.down = nn.Linear(4 * cfg.width, cfg.width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.pos = nn.Embedding(cfg.prompt_len + cfg.answer_len, cfg.width)
        self.blocks = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x))


class LoraLinear(nn.Module):
    def __init__(self, inner, rank):
        super().__init__()
        self.inner = inner
        self.a = nn.Parameter(torch.randn(rank, inner.in_features) / math.sqrt(inner.in_features))
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x):
        return self.inner(x) + 2.0 * (x @ self.a.t() @ self.b.t())


def add_adapters(model, rank):
    for p in model.parameters():
        p.requires_grad_(False)
    for blk in model.blocks:
        for name in ("qkv", "proj", "up", "down"):
            setattr(blk, name, LoraLinear(getattr(blk, name), rank))
    return model


def answers(prompt, stride, cfg, gen):
    out = [(prompt[:, -1] + stride) % cfg.vocab]
    for _ in range(cfg.answer_len - 1):
        nxt = (out[-1] + stride) % cfg.vocab
        flip = torch.rand(nxt.shape, generator=gen) < 0.1
        out.append(torch.where(flip, torch.randint(cfg.vocab, nxt.shape, generator=gen), nxt))
    return torch.cat([prompt, torch.stack(out, 1)], 1)


def pair_batch(cfg, gen):
    prompt = torch.randint(cfg.vocab, (cfg.batch, cfg.prompt_len), generator=gen)
    return answers(prompt, 1, cfg, gen), answers(prompt, 5, cfg, gen)


def answer_logps(model, ids, cfg):
    logp = model(ids)[:, :-1].log_softmax(-1)
    tok = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return tok[:, cfg.prompt_len - 1:].sum(-1)


@torch.no_grad()
def preferred_rate(model, cfg, n=128):
    gen = torch.Generator().manual_seed(99)
    ids = torch.randint(cfg.vocab, (n, cfg.prompt_len), generator=gen)
    for _ in range(cfg.answer_len):
        p = model(ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=gen)], 1)
    step = (ids[:, cfg.prompt_len:] - ids[:, cfg.prompt_len - 1:-1]) % cfg.vocab
    return (step == 1).float().mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    base = LM(cfg)
    opt = torch.optim.AdamW(base.parameters(), lr=4e-3)
    for step in range(cfg.sft_steps):
        good, bad = pair_batch(cfg, gen)
        ids = torch.cat([good, bad])
        loss = F.cross_entropy(base(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0 or step == cfg.sft_steps - 1:
            print(f"sft {step:4d} loss {loss.item():.4f}")
    print(f"sft preferred rate {preferred_rate(base, cfg):.3f}")

    reference = copy.deepcopy(base).eval().requires_grad_(False)
    policy = copy.deepcopy(base)
    policy = add_adapters(policy, cfg.rank)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)
    policy.train()
    for step in range(cfg.dpo_steps):
        good, bad = pair_batch(cfg, gen)
        ids = torch.cat([good, bad])
        pc, pr = answer_logps(policy, ids, cfg).chunk(2)
        with torch.no_grad():
            rc, rr = answer_logps(reference, ids, cfg).chunk(2)
        margin = cfg.beta * ((pc - rc) - (pr - rr))
        loss = -F.logsigmoid(margin).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([p for p in policy.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        if step % 10 == 0 or step == cfg.dpo_steps - 1:
            print(f"dpo {step:4d} loss {loss.item():.4f} margin {margin.mean().item():.4f} grad_norm {norm.item():.3f}")
    print(f"preferred rate {preferred_rate(policy, cfg):.3f}")


if __name__ == "__main__":
    main()
