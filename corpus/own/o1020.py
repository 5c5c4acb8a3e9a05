import warnings

import torch
from torch import nn, einsum
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from pydoc_data.topics import topics

warnings.filterwarnings("ignore")
torch.manual_seed(5)

D, H, L, T, BS = 64, 4, 3, 40, 16


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.wqkv = nn.Parameter(torch.randn(3, H, D, D // H) * D ** -0.5)
        self.wo = nn.Parameter(torch.randn(H, D // H, D) * D ** -0.5 / (2 * L) ** 0.5)
        self.up = nn.Parameter(torch.randn(D, 4 * D) * D ** -0.5)
        self.down = nn.Parameter(torch.randn(4 * D, D) * (4 * D) ** -0.5 / (2 * L) ** 0.5)

    def forward(self, x):
        q, k, v = einsum("btd,ihdk->ibhtk", self.n1(x), self.wqkv)
        att = einsum("bhqk,bhsk->bhqs", q, k) * (D // H) ** -0.5
        t = x.size(1)
        att = att.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        x = x + einsum("bhqs,bhsk,hkd->bqd", att, v, self.wo)
        return x + F.silu(self.n2(x) @ self.up) @ self.down


class CharLM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm = nn.RMSNorm(D)
        self.out = nn.Linear(D, vocab)
        self.grad_ckpt = False

    def forward(self, idx):
        x = self.emb(idx) + self.pos[: idx.size(1)]
        for layer in self.layers:
            if self.grad_ckpt and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.out(self.norm(x))


text = "".join(topics[k] for k in sorted(topics))[:200000]
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
base = torch.tensor([stoi[c] for c in text])
adapted = torch.tensor([stoi[c] for c in text[100000:][::-1]])
swap = torch.arange(len(chars)).view(-1)
swap[: len(chars) // 2 * 2] = swap[: len(chars) // 2 * 2].view(-1, 2).flip(1).reshape(-1)
adapted = swap[adapted]


def batches(data, n):
    for _ in range(n):
        i = torch.randint(0, len(data) - T - 1, (BS,))
        w = torch.stack([data[j:j + T + 1] for j in i.tolist()])
        yield w[:, :-1], w[:, 1:]


def heldout(model, data):
    model.eval()
    with torch.no_grad():
        w = data[: len(data) // (T + 1) * (T + 1)].view(-1, T + 1)[:100]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].reshape(-1))
    model.train()
    return loss.item()


def run(model, train, val, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 15) * (1 - 0.9 * s / steps))
    model.train()
    for step, (x, y) in enumerate(batches(train, steps)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.reshape(-1))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} step {step:3d} loss {loss.item():.4f}")
    print(f"{tag} held-out loss {heldout(model, val):.4f}")


model = CharLM(len(chars))
run(model, base[:90000], base[90000:100000], 160, 3e-3, "base ")

model.emb.weight.requires_grad_(False)
model.pos.requires_grad_(False)
model.grad_ckpt = True
run(model, adapted[:90000], adapted[90000:], 200, 2e-3, "adapt")
