import inspect
import torch
import torch.nn as nn
import torch.nn.functional as F
import doctest, mailbox, pickletools, zipfile, calendar

torch.manual_seed(35)
raw = "".join(inspect.getsource(m) for m in (doctest, mailbox, zipfile, calendar, pickletools))
chars = sorted(set(raw))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in raw])
D, HEADS, EXPERTS, TOP, CTX = 48, 4, 4, 2, 24


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D)) for _ in range(EXPERTS))
        self.aux = 0.0

    def forward(self, x):
        flat = x.reshape(-1, D)
        probs = self.router(flat).float().softmax(-1)
        weight, idx = probs.topk(TOP, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros(flat.shape, dtype=torch.float32)
        for e, expert in enumerate(self.experts):
            rows, slot = (idx == e).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]).float() * weight[rows, slot, None])
        load = F.one_hot(idx, EXPERTS).float().sum(1).mean(0)
        self.aux = EXPERTS * (load * probs.mean(0)).sum() / TOP
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.o, self.moe = nn.Linear(D, 3 * D), nn.Linear(D, D), MoE()

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, D))
        return x + self.moe(self.n2(x))


class SparseLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(chars), D)
        self.pos = nn.Parameter(torch.zeros(CTX, D))
        self.blocks = nn.ModuleList(Block() for _ in range(1))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, len(chars), bias=False)
        self.head.weight = self.emb.weight
        nn.init.normal_(self.emb.weight, std=0.05)

    def forward(self, x):
        h = self.emb(x) * 4 + self.pos[:x.size(1)]
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h)), sum(b.moe.aux for b in self.blocks)


model = SparseLM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22, growth_interval=60)
shown = []
for step in range(121):
    for micro in range(2):
        at = torch.randint(len(ids) - CTX - 1, (6,))
        rows = ids[at[:, None] + torch.arange(CTX + 1)]
        with torch.autocast("cpu", dtype=torch.float16):
            logits, aux = model(rows[:, :-1])
        ce = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        scaler.scale((ce + 0.01 * aux) / 2).backward()
        shown.append(ce.item())
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    if step % 12 == 0 or step == 120:
        print(f"step {step} ce {sum(shown[-20:]) / len(shown[-20:]):.4f} scale {scaler.get_scale():.0f}")
