import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(404)


def load():
    text = "\n\n".join(v for _, v in sorted(topics.items()))[:300000]
    vocab = sorted(set(text))
    return torch.tensor([vocab.index(c) for c in text]), len(vocab)


def init_params(vocab, d=64, layers=2, ctx=40):
    def w(*s, scale=None):
        return nn.Parameter(torch.randn(*s) * (scale or 1 / math.sqrt(s[0])))
    p = {"wte": w(vocab, d, scale=0.05), "wpe": w(ctx, d, scale=0.02)}
    for i in range(layers):
        p[f"{i}.qkv"], p[f"{i}.o"] = w(d, 3 * d), w(d, d, scale=0.04)
        p[f"{i}.w1"], p[f"{i}.w2"] = w(d, 4 * d), w(4 * d, d, scale=0.03)
    p["head"] = w(d, vocab, scale=0.02)
    return p


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def forward(p, x, layers=2, heads=4):
    b, t = x.shape
    h = p["wte"][x] + p["wpe"][:t]
    for i in range(layers):
        q, k, v = (rms(h) @ p[f"{i}.qkv"]).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
        h = h + a @ p[f"{i}.o"]
        h = h + F.relu(rms(h) @ p[f"{i}.w1"]).square() @ p[f"{i}.w2"]
    return rms(h) @ p["head"]


data, vocab = load()
params = init_params(vocab)
matrices = [v for k, v in params.items() if k[0].isdigit()]
tables = [params["wte"], params["wpe"], params["head"]]
optimizers = [
    torch.optim.SGD(matrices, lr=0.05, momentum=0.9, nesterov=True),
    torch.optim.AdamW(tables, lr=3e-3, betas=(0.9, 0.95)),
]

for it in range(200):
    at = torch.randint(0, len(data) - 41, (16,))
    win = data[at[:, None] + torch.arange(41)]
    logits = forward(params, win[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), win[:, 1:].flatten())
    loss.backward()
    for opt in optimizers:
        opt.step()
    opt.zero_grad(set_to_none=True)
    if it % 20 == 0 or it == 199:
        print(f"{it:5d} train loss {loss.item():.4f}")
