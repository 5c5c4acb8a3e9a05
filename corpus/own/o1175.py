import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(0)

keys = sorted(topics)
special = [k for k in keys if "string" in k or "format" in k]
general = "\n".join(topics[k] for k in keys if k not in special)[:300000]
domain = "\n".join(topics[k] for k in special)[:60000]
chars = sorted(set(general + domain))
stoi = {c: i for i, c in enumerate(chars)}
encode = lambda s: torch.tensor([stoi[c] for c in s])
general, domain = encode(general), encode(domain)
cut = int(0.8 * len(domain))
domain_train, domain_test = domain[:cut], domain[cut:]
T = 64


class Adapter(nn.Module):
    def __init__(self, d, r):
        super().__init__()
        self.down, self.up = nn.Linear(d, r), nn.Linear(r, d)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


class Block(nn.Module):
    def __init__(self, d, heads, r):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.adapter = Adapter(d, r) if r else nn.Identity()

    def forward(self, x):
        B, L, C = x.shape
        q, k, v = self.qkv(self.n1(x)).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, L, C))
        return self.adapter(x + self.mlp(self.n2(x)))


class CharModel(nn.Module):
    def __init__(self, d=80, heads=4, depth=3, r=0):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(chars), d), nn.Embedding(T, d)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)
        self.blocks = nn.ModuleList([Block(d, heads, r) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, len(chars))

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, batch):
        return F.cross_entropy(self.net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def draw(source, n):
    at = torch.randint(len(source) - T - 1, (n,))
    return torch.stack([source[a:a + T + 1] for a in at])


def run(module, source, steps, lr, label):
    params = [p for p in module.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        loss = module(draw(source, 16))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0:
            print(f"{label} step {step} loss {loss.item():.4f}", flush=True)


path = os.path.join(tempfile.mkdtemp(), "general.pt")
trainer = WithLoss(CharModel())
run(trainer, general, 280, 3e-3, "general")
torch.save({"model": trainer.state_dict()}, path)

checkpoint = torch.load(path)["model"]
model = CharModel(r=16)
model.load_state_dict({k.removeprefix("net."): v for k, v in checkpoint.items()}, strict=False)
for name, p in model.named_parameters():
    p.requires_grad = any(s in name for s in ("adapter", "n1", "n2", "norm", "head"))
run(WithLoss(model), domain_train, 180, 2e-3, "domain")

model.eval()
with torch.no_grad():
    rows = domain_test[:len(domain_test) // (T + 1) * (T + 1)].view(-1, T + 1)
    print(f"domain test loss {WithLoss(model)(rows).item():.4f}")
