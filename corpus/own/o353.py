import inspect
import tokenize

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from pydoc_data.topics import topics

torch.manual_seed(63)
CONTEXT = 48


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features ** -0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scaling


class DecoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.qkv_proj = nn.Linear(d, 3 * d, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.up_proj = nn.Linear(d, 3 * d, bias=False)
        self.down_proj = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv_proj(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down_proj(F.silu(self.up_proj(self.norm2(x))))


class CodeModel(nn.Module):
    def __init__(self, vocab, d=64, heads=4, depth=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.embed_positions = nn.Embedding(CONTEXT, d)
        self.layers = nn.ModuleList(DecoderLayer(d, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)
        self.gradient_checkpointing = False

    def forward(self, ids):
        x = self.embed_tokens(ids) + self.embed_positions.weight[:ids.size(1)]
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        return self.lm_head(self.norm(x))


def add_adapters(model, rank=8, alpha=16):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in ("qkv_proj", "o_proj", "up_proj", "down_proj"):
            setattr(layer, name, LoRALinear(getattr(layer, name), rank, alpha))
    model.norm.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


def run(model, data, params, lr, steps, tag):
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for step in range(steps):
        at = torch.randint(len(data) - CONTEXT - 1, (14, 1)) + torch.arange(CONTEXT + 1)
        rows = data[at]
        loss = F.cross_entropy(model(rows[:, :-1]).transpose(1, 2), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"{tag} step {step:3d} loss {loss.item():.4f}")


prose = "".join(topics[k] for k in sorted(topics)[:30]).upper()
code = inspect.getsource(tokenize) + inspect.getsource(inspect)
symbols = {c: i for i, c in enumerate(sorted(set(prose + code)))}
prose_ids = torch.tensor([symbols[c] for c in prose])
code_ids = torch.tensor([symbols[c] for c in code])

model = CodeModel(len(symbols)).train()
run(model, prose_ids, model.parameters(), 3e-3, 100, "pretrain")
adapters = add_adapters(model)
print(f"trainable {sum(p.numel() for p in adapters)} of {sum(p.numel() for p in model.parameters())}")
model.gradient_checkpointing = True
run(model, code_ids, adapters, 4e-3, 180, "adapt")
