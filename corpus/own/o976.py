import os
import pydoc_data.topics as topics
import random
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

torch.manual_seed(1337)


@dataclass
class Args:
    block_size: int = 48
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    batch_size: int = 16
    lr: float = 2e-3
    stage1_steps: int = 200
    stage2_steps: int = 160
    log_every: int = 20


args = Args()


def general_text():
    t = topics.topics
    return "".join(t[k] for k in sorted(t))[:300_000]


def domain_text(n=4000, seed=0):
    r = random.Random(seed)
    lines = []
    for _ in range(n):
        a, b = r.randint(10, 99), r.randint(10, 99)
        user = r.choice(["ops", "web", "db", "mail"])
        code = r.choice([200, 301, 404, 500])
        lines.append(f"[{a}:{b}] {user}.host-{a % 10} status={code} msg={'OK' if code < 400 else 'FAIL'} retry={b % 5}\n")
    return "".join(lines)


general, domain = general_text(), domain_text()
chars = sorted(set(general + domain))
stoi = {c: i for i, c in enumerate(chars)}
to_ids = lambda s: torch.tensor([stoi[c] for c in s])
general_ids, domain_ids = to_ids(general), to_ids(domain)


def split(x):
    n = int(0.9 * len(x))
    return {"train": x[:n], "val": x[n:]}


DATA = {"general": split(general_ids), "domain": split(domain_ids)}


def get_batch(corpus, part):
    d = DATA[corpus][part]
    ix = torch.randint(len(d) - args.block_size - 1, (args.batch_size,))
    x = torch.stack([d[i : i + args.block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + 1 + args.block_size] for i in ix])
    return x, y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (z.view(B, T, args.n_head, -1).transpose(1, 2) for z in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, args.n_embd)
        self.wpe = nn.Embedding(args.block_size, args.n_embd)
        self.h = nn.ModuleList(
            nn.ModuleDict({
                "ln_1": nn.LayerNorm(args.n_embd), "attn": Attention(), "ln_2": nn.LayerNorm(args.n_embd),
                "mlp": nn.Sequential(nn.Linear(args.n_embd, 4 * args.n_embd), nn.GELU(), nn.Linear(4 * args.n_embd, args.n_embd)),
            }) for _ in range(args.n_layer))
        self.ln_f = nn.LayerNorm(args.n_embd)
        self.lm_head = nn.Linear(args.n_embd, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        for n, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 if "proj" not in n else 0.02 / (2 * args.n_layer) ** 0.5)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.size(1)))
        for b in self.h:
            h = h + b["attn"](b["ln_1"](h))
            h = h + b["mlp"](b["ln_2"](h))
        logits = self.lm_head(self.ln_f(h))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


@torch.no_grad()
def estimate(model, corpus, n=8):
    model.eval()
    out = {p: sum(model(*get_batch(corpus, p)).item() for _ in range(n)) / n for p in ("train", "val")}
    model.train()
    return out


def make_optimizer(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                             lr=args.lr, betas=(0.9, 0.95))


def run(name, model, opt, sched, corpus, steps):
    for it in range(steps):
        loss = model(*get_batch(corpus, "train"))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        if it % args.log_every == 0 or it == steps - 1:
            print(f"{name} iter {it}: loss {loss.item():.4f}")
    e = estimate(model, corpus)
    print(f"{name} done: train {e['train']:.4f} val {e['val']:.4f}")


path = os.path.join(tempfile.mkdtemp(), "ckpt.pt")

model = GPT(len(chars))
opt = make_optimizer(model)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.stage1_steps)
run("general", model, opt, sched, "general", args.stage1_steps)
torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, path)

ckpt = torch.load(path)
model = GPT(len(chars))
model.load_state_dict(ckpt["model"])
opt = make_optimizer(model)
opt.load_state_dict(ckpt["optimizer"])
for group in opt.param_groups:
    group["lr"] = args.lr
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.stage2_steps)
run("domain", model, opt, sched, "domain", args.stage2_steps)
os.remove(path)
