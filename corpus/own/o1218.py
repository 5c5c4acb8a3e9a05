import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(3)
torch.set_num_threads(1)
N_SYM, LEN = (26, 7)
SEP = N_SYM
VOCAB = N_SYM + 1
T = 2 * LEN
DIM, HEADS, DEPTH = (64, 4, 2)
IGNORE = -100


def make_batch(n, task):
    s = torch.randint(0, N_SYM, (n, LEN))
    ans = s if task == "repeat" else s.flip(1)
    seq = torch.cat([s, torch.full((n, 1), SEP), ans], 1)
    x, y = (seq[:, :-1], seq[:, 1:].clone())
    y[:, :LEN] = IGNORE
    return (x, y)


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=12, alpha=24):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t() * self.scale


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-06) * self.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = (RMSNorm(DIM), RMSNorm(DIM))
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(DIM, 128, bias=False), nn.Linear(DIM, 128, bias=False))
        self.down = nn.Linear(128, DIM, bias=False)

    def heads(self, t):
        return t.view(t.shape[0], t.shape[1], HEADS, -1).transpose(1, 2)

    def forward(self, x):
        h = self.n1(x)
        a = F.scaled_dot_product_attention(
            self.heads(self.q(h)), self.heads(self.k(h)), self.heads(self.v(h)), is_causal=True
        )
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(T + 1, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm = RMSNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.grad_ckpt = False

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            if self.grad_ckpt and self.training:
                x = checkpoint(b, x, use_reentrant=False)
            else:
                x = b(x)
        return self.head(self.norm(x))

    def add_lora(self):
        for p in self.parameters():
            p.requires_grad_(False)
        for b in self.blocks:
            for name in ("q", "k", "v", "o", "gate", "up", "down"):
                setattr(b, name, LoRALinear(getattr(b, name)))
        for p in [*self.norm.parameters(), *self.head.parameters()]:
            p.requires_grad_(True)


def loss_fn(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORE)


@torch.no_grad()
def exact_match(model, task, n=200):
    model.eval()
    x, y = make_batch(n, task)
    ids = x[:, : LEN + 1]
    for _ in range(LEN):
        ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], 1)
    ok = ids[:, LEN + 1 :] == y[:, LEN:]
    model.train()
    return (ok.all(1).float().mean().item(), ok.float().mean().item())


def train(model, task, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    print(
        f"{tag}: {sum((p.numel() for p in params))} of {sum((p.numel() for p in model.parameters()))} weights are trained"
    )
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=lr, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        x, y = make_batch(48, task)
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 40 == 0 or step == steps - 1:
            print(f"{tag} {step:4d} loss {loss.item():.4f}")


model = Decoder()
train(model, "repeat", 220, 0.004, "base")
print("base model, repeat: exact %.3f  token %.3f" % exact_match(model, "repeat"))
model.add_lora()
model.grad_ckpt = True
train(model, "reverse", 220, 0.005, "lora")
print("adapted model, reverse: exact %.3f  token %.3f" % exact_match(model, "reverse"))
