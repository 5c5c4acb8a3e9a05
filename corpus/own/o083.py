import math
from pydoc_data.topics import topics

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(55)

CONFIG = dict(d_model=64, nhead=4, layers=2, ctx=40, batch=20, lr=2e-3, decay=0.1, warmup=20, steps=160)

corpus = " ".join(" ".join(topics[k].split()) for k in sorted(topics))[:300000]
uniq = sorted(set(corpus))
enc = {c: i for i, c in enumerate(uniq)}
tokens = torch.tensor([enc[c] for c in corpus])


class CharTransformer(nn.Module):
    def __init__(self, vocab, d_model, nhead, layers, ctx, **_):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_model)
        pe = torch.zeros(ctx, d_model)
        at = torch.arange(ctx)[:, None]
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(1000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(at * div), torch.cos(at * div)
        self.register_buffer("pe", pe)
        self.register_buffer("mask", torch.full((ctx, ctx), float("-inf")).triu(1))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d_model, nhead, 3 * d_model, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers))
        self.ln = nn.LayerNorm(d_model)
        self.fc = nn.Linear(d_model, vocab)

    def forward(self, x):
        h = self.emb(x) + self.pe
        for layer in self.layers:
            h = layer(h, src_mask=self.mask)
        return self.fc(self.ln(h))


def split_params(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    return decayed


model = CharTransformer(len(uniq), **CONFIG)
decayed = split_params(model)
opt = torch.optim.Adam(model.parameters(), lr=CONFIG["lr"])
n = CONFIG["ctx"]
for step in range(1, CONFIG["steps"] + 1):
    lr = CONFIG["lr"] * min(1.0, step / CONFIG["warmup"])
    for group in opt.param_groups:
        group["lr"] = lr
    s = torch.randint(0, len(tokens) - n - 1, (CONFIG["batch"],))
    xs = torch.stack([tokens[a:a + n] for a in s.tolist()])
    ys = torch.stack([tokens[a + 1:a + n + 1] for a in s.tolist()])
    loss = nn.functional.cross_entropy(model(xs).permute(0, 2, 1), ys)
    opt.zero_grad()
    loss.backward()
    opt.step()
    for p in decayed:
        p.data.mul_(1 - CONFIG["decay"])
    if step == 1 or step % 16 == 0:
        print(f"step {step:4d}  lr {lr:.1e}  loss {loss.item():.4f}")
