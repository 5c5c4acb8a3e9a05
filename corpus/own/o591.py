import random, math
import torch
import torch.nn as nn
import torch.nn.functional as F

R = random.Random(17)
torch.manual_seed(17)
NAMES = ["count", "total", "index", "value", "items", "node", "left", "right", "key", "size"]
OPS = ["+", "-", "*", "//", "%"]


def function():
    f, a, b = R.sample(NAMES, 3)
    kind = R.randrange(4)
    if kind == 0:
        body = f"    return {a} {R.choice(OPS)} {b}\n"
    elif kind == 1:
        body = f"    for i in range({a}):\n        {b} {R.choice(OPS)}= i\n    return {b}\n"
    elif kind == 2:
        body = f"    if {a} > {b}:\n        return {a}\n    return {b}\n"
    else:
        body = f"    while {a}:\n        {a} -= {R.randrange(1, 9)}\n        {b}.append({a})\n    return {b}\n"
    return f"def {f}_{R.randrange(10)}({a}, {b}):\n{body}\n"


def corpus(n_chars):
    out, n = [], 0
    while n < n_chars:
        s = function()
        out.append(s)
        n += len(s)
    return "".join(out)[:n_chars]


STREAMS, BPTT, D, HEADS, LAYERS = 32, 64, 72, 4, 2
train_text, valid_text = corpus(STREAMS * 8000), corpus(20000)
alphabet = sorted(set(train_text))
code = {c: i for i, c in enumerate(alphabet)}
train = torch.tensor([code[c] for c in train_text])
valid = torch.tensor([code.get(c, 0) for c in valid_text])
V = len(alphabet)


def streams(t):
    per = t.numel() // STREAMS
    return t[: per * STREAMS].view(STREAMS, per)


inputs, answers = streams(train), streams(train[1:])
n_cols = min(inputs.shape[1], answers.shape[1])


class Completer(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(V, D)
        angle = torch.arange(BPTT)[:, None] * torch.exp(-math.log(1000.0) * torch.arange(0, D, 2) / D)
        self.register_buffer("sinus", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
        self.blocks = nn.ModuleList()
        for _ in range(LAYERS):
            self.blocks.append(nn.ModuleDict(dict(
                n1=nn.LayerNorm(D), qkv=nn.Linear(D, 3 * D), o=nn.Linear(D, D),
                n2=nn.LayerNorm(D), ff=nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)))))
        self.n = nn.LayerNorm(D)
        self.out = nn.Linear(D, V)

    def forward(self, s):
        b, n = s.shape
        x = self.e(s) + self.sinus[:n]
        for m in self.blocks:
            q, k, v = (t.view(b, n, HEADS, -1).transpose(1, 2) for t in m["qkv"](m["n1"](x)).chunk(3, -1))
            w = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            w = w.masked_fill(torch.ones(n, n).triu(1).bool(), -1e9).softmax(-1)
            x = x + m["o"]((w @ v).transpose(1, 2).reshape(b, n, D))
            x = x + m["ff"](m["n2"](x))
        return self.out(self.n(x))


net = Completer()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
STEPS, at = 180, 0
for step in range(1, STEPS + 1):
    if at + BPTT > n_cols:
        at = R.randrange(BPTT)
    x, y = inputs[:, at:at + BPTT], answers[:, at:at + BPTT]
    at += BPTT
    for gr in opt.param_groups:
        gr["lr"] = 2e-3 * min(1.0, step / 25) * (1.0 - 0.8 * step / STEPS)
    loss = F.cross_entropy(net(x).transpose(1, 2), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 1:
        print(f"step {step} loss {loss.item():.4f} ppl {math.exp(loss.item()):.2f}", flush=True)

net.eval()
with torch.no_grad():
    starts = torch.arange(0, len(valid) - BPTT - 1, BPTT)
    w = valid[starts[:, None] + torch.arange(BPTT + 1)]
    print("valid loss %.4f" % F.cross_entropy(net(w[:, :-1]).transpose(1, 2), w[:, 1:]).item())
