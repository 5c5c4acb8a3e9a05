import io
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2024)

cfg = dict(vocab=40, dim=48, layers=2, heads=4, ctx=32)
TOTAL, SEGMENT, LR = 300, 5, 1.5e-2


class Attn(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attn = Attn(dim, heads)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self, vocab, dim, layers, heads, ctx):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, idx):
        x = self.tok(idx) + self.pos.weight[: idx.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


gen = torch.Generator().manual_seed(9)
logits = torch.randn(cfg["vocab"], cfg["vocab"], generator=gen) * 2.2
trans = logits.softmax(-1)
floor = -(trans * trans.log()).sum(-1).mean().item()


def get_batch(bs=6):
    s = torch.randint(cfg["vocab"], (bs, 1), generator=gen)
    for _ in range(cfg["ctx"]):
        s = torch.cat([s, torch.multinomial(trans[s[:, -1]], 1, generator=gen)], 1)
    return s[:, :-1], s[:, 1:]


val = [get_batch(32) for _ in range(2)]


def lr_at(step):
    return LR * min(1.0, (step + 1) / 20) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / TOTAL)))


def build():
    model = LM(**cfg)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.97, nesterov=True)
    return model, optimizer


def save_checkpoint(model, optimizer, step, best):
    buf = io.BytesIO()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "best": best}, buf
    )
    return buf.getvalue()


def load_checkpoint(blob, model, optimizer):
    ckpt = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
    model.load_state_dict(ckpt["model"])
    optimizer.load_state_dict(ckpt["optimizer"])
    return ckpt["step"], ckpt["best"]


def run_segment(blob):
    model, optimizer = build()
    step, best = 0, float("inf")
    if blob is not None:
        step, best = load_checkpoint(blob, model, optimizer)
    end = min(step + SEGMENT, TOTAL)
    while step < end:
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        x, y = get_batch()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
    if step % 25 == 0:
        model.eval()
        with torch.no_grad():
            vl = sum(F.cross_entropy(model(a).flatten(0, 1), b.flatten()).item() for a, b in val) / len(val)
        best = min(best, vl)
        print(f"step {step}/{TOTAL} train {loss.item():.4f} val {vl:.4f} best {best:.4f} entropy {floor:.3f}")
    return save_checkpoint(model, optimizer, step, best), step


blob, step = None, 0
while step < TOTAL:
    blob, step = run_segment(blob)
