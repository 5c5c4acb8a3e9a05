import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ITEMS, SEQ, DIM, HEADS = 600, 16, 48, 2


def sessions(n, rng, follow):
    out = np.zeros((n, SEQ + 1), dtype=np.int64)
    out[:, 0] = rng.integers(0, N_ITEMS, n)
    for t in range(1, SEQ + 1):
        pick = rng.integers(0, 3, n)
        nxt = follow[out[:, t - 1], pick]
        jump = rng.random(n) < 0.1
        out[:, t] = np.where(jump, rng.integers(0, N_ITEMS, n), nxt)
    return torch.from_numpy(out)


class SelfAttn(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(DIM, 3 * DIM)
        self.to_out = nn.Linear(DIM, DIM)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = (z.view(B, T, HEADS, -1).transpose(1, 2) for z in self.to_qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.to_out(y.transpose(1, 2).reshape(B, T, DIM))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = SelfAttn()
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


class SASRec(nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.when = nn.Embedding(SEQ, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.final = nn.LayerNorm(DIM)
        for e in (self.items, self.when):
            nn.init.normal_(e.weight, std=0.1)

    def forward(self, hist):
        x = self.items(hist) + self.when.weight[:hist.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.final(x) @ self.items.weight.T

    def configure_optimizer(self, lr, wd):
        with_wd, without_wd = [], []
        for module in self.modules():
            for name, p in module.named_parameters(recurse=False):
                if name.endswith("bias"):
                    without_wd.append(p)
                elif isinstance(module, nn.Linear):
                    with_wd.append(p)
                elif isinstance(module, (nn.LayerNorm, nn.Embedding)):
                    without_wd.append(p)
        groups = [{"params": with_wd, "weight_decay": wd}, {"params": without_wd, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98))


@torch.no_grad()
def hit_rate(model, data, k=5):
    scores = model(data[:, :-1])[:, -1]
    return (scores.topk(k, -1).indices == data[:, -1:]).any(-1).float().mean().item()


def main(seed=17, steps=360, bs=64):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    follow = rng.integers(0, N_ITEMS, (N_ITEMS, 3))
    train, valid = sessions(6000, rng, follow), sessions(1000, rng, follow)
    model = SASRec()
    opt = model.configure_optimizer(lr=4e-3, wd=0.01)
    running = None
    for step in range(steps):
        rows = train[torch.randint(0, len(train), (bs,))]
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:4d} loss {loss.item():.4f} (avg {running:.4f})", flush=True)
    print(f"valid HR@5 {hit_rate(model, valid):.4f}")


main()
