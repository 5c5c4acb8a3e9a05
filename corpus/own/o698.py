import io
from pydoc_data import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

CTX, BATCH, DIM, HEADS = 32, 24, 64, 4
TOTAL, STOP_AT, SWA_FROM = 200, 90, 150


def orthogonalize(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.shape[0] > x.shape[1]
    if flip:
        x = x.T
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("buf", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                update = orthogonalize(p.grad + group["momentum"] * buf)
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        self.w1 = nn.Linear(DIM, 3 * DIM, bias=False)
        self.w2 = nn.Linear(3 * DIM, DIM, bias=False)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.w2.weight)

    def forward(self, x, decay):
        b, t, d = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (d,))).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=decay)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.w2(F.relu(self.w1(F.rms_norm(x, (d,)))).square())


class ByteLM(nn.Module):

    def __init__(self, vocab, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.bias = nn.Parameter(torch.zeros(vocab))
        nn.init.normal_(self.emb.weight, std=0.05)
        dist = torch.arange(CTX)[:, None] - torch.arange(CTX)[None, :]
        slope = 2.0 ** -torch.arange(0, HEADS).float()
        alibi = -slope[:, None, None] * dist
        self.register_buffer("alibi", alibi.masked_fill(dist < 0, float("-inf")), persistent=False)

    def forward(self, ids):
        t = ids.shape[1]
        x = F.rms_norm(self.emb(ids), (DIM,))
        for blk in self.blocks:
            x = blk(x, self.alibi[:, :t, :t])
        return F.rms_norm(x, (DIM,)) @ self.emb.weight.T + self.bias


def build(vocab):
    model = ByteLM(vocab)
    matrices = list(model.blocks.parameters())
    others = [model.emb.weight, model.bias]
    opts = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=4e-3, betas=(0.8, 0.95), weight_decay=0.0)]
    flat_then_down = lambda s: 1.0 if s < 110 else max(0.1, 1 - (s - 110) / 70)
    scheds = [torch.optim.lr_scheduler.LambdaLR(o, flat_then_down) for o in opts]
    return model, opts, scheds


def train(model, opts, scheds, data, start, stop, gen, swa=None):
    for step in range(start, stop):
        at = torch.randint(len(data) - CTX - 1, (BATCH, 1), generator=gen)
        win = data[at + torch.arange(CTX + 1)]
        loss = F.cross_entropy(model(win[:, :-1]).flatten(0, 1), win[:, 1:].flatten())
        model.zero_grad(set_to_none=True)
        loss.backward()
        for o, s in zip(opts, scheds):
            o.step()
            s.step()
        if swa is not None and step >= SWA_FROM:
            swa.update_parameters(model)
        if step % 20 == 0 or step == stop - 1:
            print(f"step {step:4d} loss {loss.item():.4f}")


@torch.no_grad()
def held_out(model, data):
    gen = torch.Generator().manual_seed(8)
    at = torch.randint(len(data) - CTX - 1, (200, 1), generator=gen)
    win = data[at + torch.arange(CTX + 1)]
    return F.cross_entropy(model(win[:, :-1]).flatten(0, 1), win[:, 1:].flatten()).item()


torch.manual_seed(0)
raw = bytes("".join(topics.topics[k] for k in sorted(topics.topics)), "latin-1", "ignore")[:250_000]
used = sorted(set(raw))
index = {b: i for i, b in enumerate(used)}
data = torch.tensor([index[b] for b in raw])
train_data, valid_data = data[:-20_000], data[-20_000:]

gen = torch.Generator().manual_seed(1)
model, opts, scheds = build(len(used))
train(model, opts, scheds, train_data, 0, STOP_AT, gen)
blob = io.BytesIO()
torch.save(
    {"model": model.state_dict(), "opts": [o.state_dict() for o in opts],
     "scheds": [s.state_dict() for s in scheds], "gen": gen.get_state()}, blob)

blob.seek(0)
saved = torch.load(blob, weights_only=True)
model, opts, scheds = build(len(used))
model.load_state_dict(saved["model"])
for o, s, so, ss in zip(opts, scheds, saved["opts"], saved["scheds"]):
    o.load_state_dict(so)
    s.load_state_dict(ss)
gen.set_state(saved["gen"])
print("resumed, held-out loss", round(held_out(model, valid_data), 4))
swa = torch.optim.swa_utils.AveragedModel(model)
train(model, opts, scheds, train_data, STOP_AT, TOTAL, gen, swa)
print("held-out loss", round(held_out(model, valid_data), 4), "averaged", round(held_out(swa, valid_data), 4))
