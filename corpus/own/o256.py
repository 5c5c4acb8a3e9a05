import math
import string

import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(5)
LETTERS = string.ascii_lowercase
LENGTH = 10
SEP = 26
gen = torch.Generator().manual_seed(77)


def task(kind, n):
    src = torch.randint(26, (n, LENGTH), generator=gen)
    dst = (src + 3) % 26 if kind == "shift" else (src + 7) % 26
    ids = torch.cat([src, torch.full((n, 1), SEP), dst], 1)
    labels = ids.clone()
    labels[:, :LENGTH + 1] = -100
    return ids, labels


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=16):
        super().__init__()
        self.base = base
        n_in, n_out = base.weight.shape
        self.a = nn.Parameter(torch.empty(n_in, rank))
        self.b = nn.Parameter(torch.zeros(rank, n_out))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.a @ self.b) * self.scale


config = GPT2Config(vocab_size=27, n_positions=32, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(config)

opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(140):
    ids, labels = task("shift", 24)
    loss = model(input_ids=ids, labels=labels).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 139:
        print(f"base {step} loss {loss.item():.4f}")

for p in model.parameters():
    p.requires_grad_(False)
for block in model.transformer.h:
    block.attn.c_attn = LoRALinear(block.attn.c_attn)
    block.attn.c_proj = LoRALinear(block.attn.c_proj)
    block.mlp.c_fc = LoRALinear(block.mlp.c_fc)
    block.mlp.c_proj = LoRALinear(block.mlp.c_proj)
trainable = [p for p in model.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))

opt = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)
for step in range(80):
    ids, labels = task("other", 24)
    loss = model(input_ids=ids, labels=labels).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 79:
        print(f"adapter {step} loss {loss.item():.4f}")
