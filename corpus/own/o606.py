import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)

VOCAB, CTX, DIM, HEADS, KV = 32, 24, 64, 4, 2


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                grad, lr, wd, state = p.grad, group["lr"], group["weight_decay"], self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                b1, b2 = group["betas"]
                p.mul_(1 - lr * wd)
                update = exp_avg.clone().mul_(b1).add_(grad, alpha=1 - b1).sign_()
                p.add_(update, alpha=-lr)
                exp_avg.mul_(b2).add_(grad, alpha=1 - b2)


def rope(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.hd = DIM // HEADS
        self.wq = nn.Linear(DIM, DIM, bias=False)
        self.wk = nn.Linear(DIM, KV * self.hd, bias=False)
        self.wv = nn.Linear(DIM, KV * self.hd, bias=False)
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, HEADS, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, KV, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, KV, self.hd).transpose(1, 2)
        q, k = rope(q, cos, sin).to(v.dtype), rope(k, cos, sin).to(v.dtype)
        k, v = k.repeat_interleave(HEADS // KV, 1), v.repeat_interleave(HEADS // KV, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, DIM))


class FFN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, 128, bias=False)
        self.w3 = nn.Linear(DIM, 128, bias=False)
        self.w2 = nn.Linear(128, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Llama(nn.Module):
    def __init__(self, n_layer=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, DIM)
        self.attn = nn.ModuleList(Attention() for _ in range(n_layer))
        self.ffn = nn.ModuleList(FFN() for _ in range(n_layer))
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(2 * n_layer + 1))
        self.output = nn.Linear(DIM, VOCAB, bias=False)
        hd = DIM // HEADS
        ang = torch.outer(torch.arange(CTX).float(), 10000 ** (-torch.arange(0, hd, 2).float() / hd))
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def forward(self, idx):
        x = self.tok_embeddings(idx)
        for i, (a, f) in enumerate(zip(self.attn, self.ffn)):
            x = x + a(self.norms[2 * i](x), self.cos, self.sin)
            x = x + f(self.norms[2 * i + 1](x))
        return self.output(self.norms[-1](x))


gen = torch.Generator().manual_seed(4)
succ = torch.stack([torch.randperm(VOCAB, generator=gen)[:2] for _ in range(VOCAB)])


def get_batch(bs=8):
    s = torch.randint(VOCAB, (bs, 1), generator=gen)
    for _ in range(CTX):
        c = (torch.rand(bs, 1, generator=gen) < 0.2).long()
        s = torch.cat([s, succ[s[:, -1]].gather(1, c)], 1)
    return s[:, :-1], s[:, 1:]


model = Llama()
decay = [p for p in model.parameters() if p.dim() >= 2]
no_decay = [p for p in model.parameters() if p.dim() < 2]
base_lr, steps = 1e-4, 360
optimizer = Lion([{"params": decay, "weight_decay": 0.1}, {"params": no_decay}], lr=base_lr, betas=(0.9, 0.98))

running = None
for step in range(steps):
    lr = base_lr * min(1.0, (step + 1) / 10)
    for g in optimizer.param_groups:
        g["lr"] = lr
    x, y = get_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float().view(-1, VOCAB), y.reshape(-1))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if step % 30 == 0 or step == steps - 1:
        print(f"step {step:>4} loss {running:.4f} gnorm {norm.item():.3f} lr {lr:.2e}")
