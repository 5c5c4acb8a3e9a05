import math
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)


@dataclass
class GPTConfig:
    vocab_size: int = 48
    block_size: int = 32
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 48
    n_future: int = 2
    mtp_weight: float = 0.3


def build_corpus(vocab, length, gen):
    succ = torch.stack([torch.randperm(vocab, generator=gen)[:4] for _ in range(vocab)])
    p = torch.tensor([0.7, 0.15, 0.1, 0.05])
    choice = torch.multinomial(p, length, replacement=True, generator=gen).tolist()
    succ = succ.tolist()
    out, cur = [], 0
    for c in choice:
        cur = succ[cur][c]
        out.append(cur)
    return torch.tensor(out)


class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=False)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd, bias=False)
        self.n_head = cfg.n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg.n_embd)
        self.attn = CausalSelfAttention(cfg)
        self.ln_2 = nn.LayerNorm(cfg.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.n_embd, 4 * cfg.n_embd), nn.GELU(), nn.Linear(4 * cfg.n_embd, cfg.n_embd)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MTPForCausalLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.wte = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.wpe = nn.Embedding(cfg.block_size, cfg.n_embd)
        self.h = nn.ModuleList([Block(cfg) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.mtp = nn.ModuleList([Block(cfg) for _ in range(cfg.n_future - 1)])
        self.lm_head = nn.Linear(cfg.n_embd, cfg.vocab_size, bias=False)
        self.apply(self._init_weights)
        for n, p in self.named_parameters():
            if n.endswith("c_proj.weight"):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * cfg.n_layer))

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
            if getattr(m, "bias", None) is not None:
                nn.init.zeros_(m.bias)

    def forward(self, input_ids, labels=None):
        pos = torch.arange(input_ids.size(1))
        x = self.wte(input_ids) + self.wpe(pos)
        for blk in self.h:
            x = blk(x)
        logits = [self.lm_head(self.ln_f(x))]
        for blk in self.mtp:
            x = blk(x)
            logits.append(self.lm_head(self.ln_f(x)))
        loss = None
        if labels is not None:
            loss = 0.0
            for k, lg in enumerate(logits):
                shift_logits = lg[:, : -(k + 1)].contiguous()
                shift_labels = labels[:, k + 1 :].contiguous()
                l = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
                loss = loss + (l if k == 0 else self.cfg.mtp_weight * l)
        return logits[0], loss


cfg = GPTConfig()
gen = torch.Generator().manual_seed(7)
tokens = build_corpus(cfg.vocab_size, 60000, gen)
train_data, val_data = tokens[:54000], tokens[54000:]


def get_batch(split, bs=12):
    d = train_data if split == "train" else val_data
    ix = torch.randint(len(d) - cfg.block_size - 1, (bs,))
    x = torch.stack([d[i : i + cfg.block_size] for i in ix])
    y = torch.stack([d[i + 1 : i + 1 + cfg.block_size] for i in ix])
    return x, y


@torch.no_grad()
def next_token_acc(model):
    model.eval()
    x, y = get_batch("val", 64)
    logits, _ = model(x)
    model.train()
    return (logits.argmax(-1) == y).float().mean().item()


model = MTPForCausalLM(cfg)
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}],
    lr=2e-3, betas=(0.9, 0.95),
)
max_iters, warmup = 240, 20


def get_lr(it):
    if it < warmup:
        return 2e-3 * (it + 1) / warmup
    r = (it - warmup) / (max_iters - warmup)
    return 2e-4 + 0.5 * (1 + math.cos(math.pi * r)) * (2e-3 - 2e-4)


for it in range(max_iters):
    for g in optimizer.param_groups:
        g["lr"] = get_lr(it)
    input_ids, labels = get_batch("train")
    _, loss = model(input_ids, labels=labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if it % 25 == 0 or it == max_iters - 1:
        print(f"iter {it}: loss {loss.item():.4f} val next-token acc {next_token_acc(model):.3f}")
