import copy
import random
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics


@dataclass
class Args:
    learning_rate: float = 5e-7
    beta: float = 0.1
    warmup: int = 8
    pairs: int = 8
    accumulate: int = 2
    updates: int = 90
    prompt: int = 16
    answer: int = 24


args = Args()
random.seed(0)
torch.manual_seed(0)
text = " ".join(" ".join(topics[k].split()) for k in sorted(topics))
chars = sorted(set(text))
index = {c: i for i, c in enumerate(chars)}
corpus = torch.tensor([index[c] for c in text])


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.w, 1e-5)


class SwiGLU(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.g, self.u, self.d = nn.Linear(d, f, False), nn.Linear(d, f, False), nn.Linear(f, d, False)

    def forward(self, x):
        return self.d(F.silu(self.g(x)) * self.u(x))


class Policy(nn.Module):
    def __init__(self, vocab, d=64, heads=4, depth=2, length=64):
        super().__init__()
        self.heads = heads
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.an = nn.ModuleList(Norm(d) for _ in range(depth))
        self.fn = nn.ModuleList(Norm(d) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d, False) for _ in range(depth))
        self.o = nn.ModuleList(nn.Linear(d, d, False) for _ in range(depth))
        self.ff = nn.ModuleList(SwiGLU(d, 160) for _ in range(depth))
        self.last, self.head = Norm(d), nn.Linear(d, vocab, False)

    def forward(self, ids):
        b, t = ids.shape
        x = self.tok(ids) + self.pos(torch.arange(t))
        for an, fn, qkv, o, ff in zip(self.an, self.fn, self.qkv, self.o, self.ff):
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in qkv(an(x)).chunk(3, -1))
            x = x + o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))
            x = x + ff(fn(x))
        return self.head(self.last(x))


def answer_logps(model, ids):
    logp = model(ids[:, :-1]).log_softmax(-1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    return picked[:, args.prompt - 1:].sum(-1)


def draw(n):
    good, bad = [], []
    for _ in range(n):
        at = random.randrange(len(corpus) - 64)
        prompt = corpus[at:at + args.prompt]
        answer = corpus[at + args.prompt:at + args.prompt + args.answer]
        good.append(torch.cat([prompt, answer]))
        bad.append(torch.cat([prompt, answer[torch.randperm(args.answer)]]))
    return torch.stack(good + bad)


policy = Policy(len(chars))
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=args.learning_rate, weight_decay=0.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup))

for update in range(args.updates):
    total, wins = 0.0, 0.0
    for _ in range(args.accumulate):
        ids = draw(args.pairs)
        with torch.no_grad():
            ref_good, ref_bad = answer_logps(reference, ids).chunk(2)
        good, bad = answer_logps(policy, ids).chunk(2)
        margin = args.beta * ((good - ref_good) - (bad - ref_bad))
        loss = -F.logsigmoid(margin).mean() / args.accumulate
        loss.backward()
        total += loss.item()
        wins += (margin > 0).float().mean().item() / args.accumulate
    nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    if update % 10 == 0 or update == args.updates - 1:
        print(f"update {update:3d}  dpo loss {total:.4f}  reward accuracy {wins:.2f}")
