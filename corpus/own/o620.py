import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)

MASK, VOCAB, SEQ = 0, 33, 24


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=1000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos()[:, None], emb.sin()[:, None]


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    q = q * cos + rotate_half(q) * sin
    k = k * cos + rotate_half(k) * sin
    return q, k


class EncoderAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.Wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, position_embeddings):
        b, t, c = x.shape
        q, k, v = self.Wqkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin = position_embeddings
        apply_rotary_pos_emb(q, k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.Wo(y.transpose(1, 2).reshape(b, t, c))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = EncoderAttention(dim, heads)
        self.Wi, self.Wo = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x, pe):
        x = x + self.attn(self.attn_norm(x), pe)
        a, g = self.Wi(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.Wo(F.gelu(a) * g)


class ForMaskedLM(nn.Module):
    def __init__(self, dim=48, layers=2, heads=4):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, dim)
        self.rotary_emb = RotaryEmbedding(dim // heads)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(layers)])
        self.final_norm = nn.LayerNorm(dim)
        self.decoder = nn.Linear(dim, VOCAB)

    def forward(self, input_ids, labels=None):
        position_ids = torch.arange(input_ids.size(1)).unsqueeze(0)
        pe = self.rotary_emb(position_ids)
        x = self.tok_embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, pe)
        logits = self.decoder(self.final_norm(x))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)
        return loss, logits


gen = torch.Generator().manual_seed(8)
perm = torch.randperm(VOCAB - 1, generator=gen) + 1


def sample(bs):
    s = torch.randint(1, VOCAB, (bs, SEQ), generator=gen)
    keep = torch.rand(bs, SEQ, generator=gen) < 0.8
    for t in range(1, SEQ):
        s[:, t] = torch.where(keep[:, t], perm[s[:, t - 1] - 1], s[:, t])
    return s


def mask_tokens(ids, p=0.2):
    m = torch.rand(ids.shape, generator=gen) < p
    return ids.masked_fill(m, MASK), ids.masked_fill(~m, -100)


@torch.no_grad()
def ema_update(ema, model, decay):
    for pe, p in zip(ema.parameters(), model.parameters()):
        pe.lerp_(p, 1 - decay)


model = ForMaskedLM()
ema = copy.deepcopy(model).requires_grad_(False).eval()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=300, pct_start=0.1)
held = mask_tokens(sample(128))

for step in range(300):
    ids, labels = mask_tokens(sample(20))
    loss, _ = model(ids, labels)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    ema_update(ema, model, min(0.97, (step + 1) / (step + 10)))
    if step % 25 == 0 or step == 299:
        with torch.no_grad():
            vloss, vlog = ema(*held)
        sel = held[1] != -100
        acc = (vlog.argmax(-1)[sel] == held[1][sel]).float().mean()
        print(f"{step:4d} mlm {loss.item():.4f} ema_val {vloss.item():.4f} acc {acc.item():.3f}")
