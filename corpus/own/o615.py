import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)


def rotate(x, cos, sin):
    d = x.shape[-1] // 2
    x1, x2 = x[..., :d], x[..., d:]
    out = torch.empty_like(x)
    torch.sub(x1 * cos, x2 * sin, out=out[..., :d])
    torch.add(x1 * sin, x2 * cos, out=out[..., d:])
    return out


class ApplyRotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, do):
        cos, sin = ctx.saved_tensors
        dx = rotate(do.contiguous(), cos, sin)
        return dx, None, None


apply_rotary = ApplyRotary.apply


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        var = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(var + self.variance_epsilon)


class LlamaAttention(nn.Module):
    def __init__(self, hidden, heads, kv_heads):
        super().__init__()
        self.h, self.kv, self.hd = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.hd, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.hd, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.hd, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        bsz, q_len, _ = x.shape
        q = self.q_proj(x).view(bsz, q_len, self.h, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(bsz, q_len, self.kv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(bsz, q_len, self.kv, self.hd).transpose(1, 2)
        q = apply_rotary(q, cos, sin)
        k = apply_rotary(k, cos, sin)
        n_rep = self.h // self.kv
        k = k[:, :, None].expand(-1, -1, n_rep, -1, -1).reshape(bsz, self.h, q_len, self.hd)
        v = v[:, :, None].expand(-1, -1, n_rep, -1, -1).reshape(bsz, self.h, q_len, self.hd)
        w = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        w = w + torch.full((q_len, q_len), float("-inf")).triu(1)
        w = F.softmax(w, dim=-1)
        return self.o_proj((w @ v).transpose(1, 2).reshape(bsz, q_len, -1))


class LlamaMLP(nn.Module):
    def __init__(self, hidden, inter):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inter, bias=False)
        self.up_proj = nn.Linear(hidden, inter, bias=False)
        self.down_proj = nn.Linear(inter, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, inter):
        super().__init__()
        self.self_attn = LlamaAttention(hidden, heads, kv_heads)
        self.mlp = LlamaMLP(hidden, inter)
        self.input_layernorm = LlamaRMSNorm(hidden)
        self.post_attention_layernorm = LlamaRMSNorm(hidden)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaForCausalLM(nn.Module):
    def __init__(self, vocab, hidden=64, layers=2, heads=4, kv_heads=2, inter=128, max_pos=64, rope_theta=500.0):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList([LlamaDecoderLayer(hidden, heads, kv_heads, inter) for _ in range(layers)])
        self.norm = LlamaRMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        hd = hidden // heads
        inv = 1.0 / (rope_theta ** (torch.arange(0, hd, 2).float() / hd))
        ang = torch.outer(torch.arange(max_pos).float(), inv)
        self.register_buffer("cos", ang.cos())
        self.register_buffer("sin", ang.sin())
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.08)

    def forward(self, input_ids):
        t = input_ids.size(1)
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.lm_head(self.norm(x))


VOCAB, SEQ, LAG = 32, 32, 7
gen = torch.Generator().manual_seed(11)
perm = torch.randperm(VOCAB, generator=gen)


def make_batch(bs):
    s = torch.randint(VOCAB, (bs, SEQ + 1), generator=gen)
    keep = torch.rand(bs, SEQ + 1, generator=gen) < 0.9
    for t in range(LAG, SEQ + 1):
        s[:, t] = torch.where(keep[:, t], perm[s[:, t - LAG]], s[:, t])
    return s


model = LlamaForCausalLM(VOCAB)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - s / 300))

for step in range(240):
    batch = make_batch(16)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 239:
        print({"step": step, "loss": round(loss.item(), 4), "lr": scheduler.get_last_lr()[0]})
