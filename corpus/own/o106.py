import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(31)

KEYS, VALS, PAIRS = 24, 16, 10


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(d)
        self.fc_in = nn.Linear(d, 2 * d)
        self.fc_out = nn.Linear(2 * d, d)

    def forward(self, x, mask):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.fc_out(F.gelu(self.fc_in(self.ln_2(x))))


class Recall(nn.Module):
    def __init__(self, d=64, heads=2, depth=1, ctx=PAIRS + 1):
        super().__init__()
        self.key = nn.Embedding(KEYS, d)
        self.val = nn.Embedding(VALS + 1, d)
        self.wpe = nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, VALS)

    def forward(self, keys, vals):
        t = keys.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        h = self.key(keys) + self.val(vals) + self.wpe.weight[:t]
        for layer in self.layers:
            h = layer(h, mask)
        return self.lm_head(self.ln_f(h))[:, -1]


def param_groups(model, weight_decay):
    decay, plain = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if name.endswith(".bias") or ".ln_" in name or name.startswith("ln_f"):
            plain.append(p)
        elif name.endswith(".weight"):
            decay.append(p)
    return [dict(params=decay, weight_decay=weight_decay), dict(params=plain, weight_decay=0.0)]


def batch(n):
    keys = torch.rand(n, KEYS).argsort(1)[:, :PAIRS]
    vals = torch.randint(VALS, (n, PAIRS))
    pick = torch.randint(PAIRS, (n, 1))
    keys = torch.cat([keys, keys.gather(1, pick)], 1)
    seen = torch.cat([vals, torch.full((n, 1), VALS)], 1)
    return keys, seen, vals.gather(1, pick)[:, 0]


model = Recall()
opt = torch.optim.AdamW(param_groups(model, 0.01), lr=3e-3, betas=(0.9, 0.98))
run = []
for step in range(240):
    k, v, y = batch(64)
    out = model(k, v)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    run.append((out.argmax(-1) == y).float().mean().item())
    if step % 20 == 0 or step == 239:
        print(f"{step:4d} loss {loss.item():.4f} acc {sum(run[-20:]) / len(run[-20:]):.3f}")
