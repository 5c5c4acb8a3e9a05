import math
from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(31)
accelerator = Accelerator(cpu=True)

words = [w for v in topics.values() for w in v.lower().split()]
common = {}
for w in words:
    common[w] = common.get(w, 0) + 1
keep = sorted(common, key=lambda w: (-common[w], w))[:1199]
index = {w: i + 1 for i, w in enumerate(keep)}
flat = torch.tensor([index.get(w, 0) for w in words])
SPAN = 33
rows = flat[: len(flat) // SPAN * SPAN].view(-1, SPAN)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln_1 = nn.LayerNorm(d)
        self.ln_2 = nn.LayerNorm(d)
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.mlp = nn.ModuleDict(dict(fc=nn.Linear(d, 4 * d), act=nn.GELU(), proj=nn.Linear(4 * d, d)))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.h, d // self.h).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.c_proj(y)
        m = self.mlp
        return x + m["proj"](m["act"](m["fc"](self.ln_2(x))))


class WordGPT(nn.Module):
    def __init__(self, vocab, d=128, h=4, depth=2, span=SPAN):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Embedding(span, d)
        self.h = nn.ModuleList([Block(d, h) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * depth))
        self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


loader = DataLoader(TensorDataset(rows), batch_size=12, shuffle=True, drop_last=True)
model = WordGPT(1200)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

done, total = 0, 200
while done < total:
    for (batch,) in loader:
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if done % 20 == 0 or done == total - 1:
            accelerator.print(f"step {done} loss {loss.item():.4f}")
        done += 1
        if done == total:
            break
