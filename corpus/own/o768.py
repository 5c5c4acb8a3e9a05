import random
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
SEED = 19
random.seed(SEED)
torch.manual_seed(SEED)

TOKENS = ["<pad>", "def", "return", "if", "else", "for", "in", "(", ")", ":", ",", "=", "+", "-", "*", "<", ">",
          "NL", "IND", "DED", "let", "fn", "{", "}", ";", "then", "end"] + [f"v{i}" for i in range(12)] \
    + [f"f{i}" for i in range(6)] + [str(i) for i in range(8)]
ID = {t: i for i, t in enumerate(TOKENS)}


def expr(scope):
    a, b = random.choice(scope), random.choice(scope + [str(random.randrange(8))])
    return [a, random.choice("+-*"), b]


def snippet(dialect):
    f = f"f{random.randrange(6)}"
    args = [f"v{i}" for i in random.sample(range(12), 3)]
    scope = args[:2]
    if dialect == "py":
        out = ["def", f, "(", args[0], ",", args[1], ")", ":", "NL", "IND"]
        out += [args[2], "="] + expr(scope) + ["NL"]
        out += ["if", args[2], "<", args[0], ":", "NL", "IND", "return", args[2], "NL", "DED"]
        return out + ["return"] + expr(scope + [args[2]]) + ["NL", "DED"]
    out = ["fn", f, "(", args[1], ",", args[0], ")", "{"]
    out += ["let", args[2], "="] + expr(scope) + [";"]
    out += ["if", args[0], ">", args[2], "then", "return", args[2], ";", "end"]
    return out + ["return"] + expr(scope + [args[2]]) + [";", "}"]


def make_stream(dialect, n):
    ids = [ID[t] for _ in range(n) for t in snippet(dialect)]
    return torch.tensor(ids)


def get_batch(stream, bs=24, T=48):
    i = torch.randint(0, len(stream) - T - 1, (bs,))
    w = torch.stack([stream[k:k + T + 1] for k in i.tolist()])
    return w[:, :-1], w[:, 1:]


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, D))
        return x + self.ff(self.ln2(x))


class CodeLM(nn.Module):
    def __init__(self, d=64, h=4, layers=2, ctx=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(TOKENS), d), nn.Embedding(ctx, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.ln = nn.LayerNorm(d)
        self.head = nn.Linear(d, len(TOKENS), bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln(x)).float()


def lm_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def validate(model, stream, n=6):
    g = torch.random.get_rng_state()
    torch.manual_seed(1234)
    v = sum(lm_loss(model, get_batch(stream)).item() for _ in range(n)) / n
    torch.random.set_rng_state(g)
    return v


def fit(tag, model, stream, val, steps, lr):
    opt = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    t0 = time.time()
    for s in range(steps):
        for g in opt.param_groups:
            g["lr"] = lr * min(1.0, (s + 1) / 15)
        loss = lm_loss(model, get_batch(stream))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if s % 40 == 0 or s == steps - 1:
            print(f"{tag} {s:3d} loss {loss.item():.4f} val {validate(model, val):.4f} [{time.time() - t0:.1f}s]")


py, py_val = make_stream("py", 1500), make_stream("py", 150)
alt, alt_val = make_stream("alt", 1500), make_stream("alt", 150)
model = CodeLM()
fit("base ", model, py, py_val, 160, 2e-3)
model = model.to(torch.bfloat16)
fit("adapt", model, alt, alt_val, 160, 1e-4)
