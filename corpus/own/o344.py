import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.manual_seed(1337)

corpus = "\n".join(topics[k] for k in sorted(topics)).lower()
alphabet = sorted(set(corpus))
encode = {ch: i for i, ch in enumerate(alphabet)}
stream = torch.tensor([encode[ch] for ch in corpus], dtype=torch.long)

n_meta = 8
block_size = 48
batch_size = 12
max_iters = 180
warmup_iters = 20
learning_rate = 3e-3


def get_batch():
    ix = torch.randint(len(stream) - block_size - 1, (batch_size,))
    x = torch.stack([stream[i:i + block_size] for i in ix])
    y = torch.stack([stream[i + 1:i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(n_embd, bias=False)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.ln_2 = nn.LayerNorm(n_embd, bias=False)
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_out = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_out(F.relu(self.c_fc(self.ln_2(x))).square())


class MetaTokenGPT(nn.Module):
    def __init__(self, vocab, n_embd=72, n_head=4, n_layer=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, n_embd)
        self.wpe = nn.Embedding(n_meta + block_size, n_embd)
        self.meta = nn.Parameter(torch.randn(n_meta, n_embd) * 0.02)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd, bias=False)
        self.lm_head = nn.Linear(n_embd, vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * n_layer) if "proj" in name else 0.05)

    def forward(self, idx, targets):
        b, t = idx.shape
        x = torch.cat([self.meta.expand(b, -1, -1), self.wte(idx)], dim=1)
        x = x + self.wpe.weight[:n_meta + t]
        x = self.ln_f(self.blocks(x))
        logits = self.lm_head(x[:, n_meta - 1:-1])
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


model = MetaTokenGPT(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.05)
for it in range(max_iters):
    lr = learning_rate * min(1.0, (it + 1) / warmup_iters) * (0.55 + 0.45 * math.cos(math.pi * it / max_iters))
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 20 == 0 or it == max_iters - 1:
        print(f"iter {it}: loss {loss.item():.4f}, lr {lr:.2e}")
