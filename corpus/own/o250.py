import torch
import torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(73)
SYMBOLS, SRC = 24, 10
SEP = SYMBOLS
g = torch.Generator().manual_seed(74)


class LowRank(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base = base
        d_in, d_out = base.weight.shape
        self.down = nn.Parameter(torch.randn(d_in, rank) / d_in ** 0.5)
        self.up = nn.Parameter(torch.zeros(rank, d_out))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + (x @ self.down @ self.up) * self.scale


def rows(n, shift):
    src = torch.randint(SYMBOLS, (n, SRC), generator=g)
    ids = torch.cat([src, torch.full((n, 1), SEP), (src + shift) % SYMBOLS], 1)
    labels = ids.clone()
    labels[:, : SRC + 1] = -100
    return ids, labels


def fit(model, params, shift, steps, lr, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for i in range(1, steps + 1):
        ids, labels = rows(32, shift)
        loss = model(input_ids=ids, labels=labels).loss
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if i == 1 or i % 20 == 0:
            print(f"{tag} {i:3d} loss {loss.item():.4f}")


config = GPT2Config(vocab_size=SYMBOLS + 1, n_positions=2 * SRC + 1, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, tie_word_embeddings=False)
model = GPT2LMHeadModel(config)
for p in model.parameters():
    p.requires_grad_(False)
for block in model.transformer.h:
    block.attn.c_attn = LowRank(block.attn.c_attn, 16)
    block.attn.c_proj = LowRank(block.attn.c_proj, 16)
    block.mlp.c_fc = LowRank(block.mlp.c_fc, 16)
    block.mlp.c_proj = LowRank(block.mlp.c_proj, 16)
model.lm_head.weight.requires_grad_(True)
model.transformer.wpe.weight.requires_grad_(True)
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
fit(model, trainable, 3, 180, 5e-3, "adapter")
