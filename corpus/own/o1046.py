import argparse
import copy
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")


class LoraLinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear
        self.lora_A = nn.Linear(linear.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, linear.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = alpha / r

    def forward(self, x):
        return self.linear(x) + self.lora_B(self.lora_A(x)) * self.scaling


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q_proj, self.k_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.v_proj, self.o_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.up_proj = nn.Linear(dim, 2 * dim, bias=False)
        self.down_proj = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(B, T, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(B, T, C))
        h = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class CausalLM(nn.Module):
    def __init__(self, vocab, dim=64, layers=2, heads=4, max_len=48):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.embed_positions = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.gradient_checkpointing = False

    def gradient_checkpointing_enable(self):
        self.gradient_checkpointing = True

    def forward(self, ids):
        x = self.embed_tokens(ids) + self.embed_positions(torch.arange(ids.size(1)))
        if self.gradient_checkpointing and self.training:
            x.requires_grad_()
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        return self.lm_head(self.norm(x))


def shifted_loss(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class ChainCorpus:
    def __init__(self, vocab, seed):
        g = torch.Generator().manual_seed(seed)
        self.perm = torch.stack([torch.randperm(vocab, generator=g) for _ in range(2)])
        self.vocab, self.gen = vocab, g

    def sample(self, n, length, order):
        x = torch.randint(self.vocab, (n, length), generator=self.gen)
        for t in range(2, length):
            keep = torch.rand(n, generator=self.gen) < 0.9
            lag = 1 if (t % 2 == 0) == (order == "a") else 2
            src = self.perm[lag - 1][x[:, t - lag]]
            x[:, t] = torch.where(keep, src, x[:, t])
        return x


def get_peft_model(model, r, alpha, targets):
    for p in model.parameters():
        p.requires_grad_(False)
    for layer in model.layers:
        for name in targets:
            setattr(layer, name, LoraLinear(getattr(layer, name), r, alpha))
    for p in model.lm_head.parameters():
        p.requires_grad_(True)
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"trainable params: {n} || all params: {sum(p.numel() for p in model.parameters())}")
    return model


def evaluate(model, ids):
    model.eval()
    with torch.no_grad():
        loss = shifted_loss(model(ids), ids).item()
    model.train()
    return loss


def fit(model, corpus, order, steps, lr, args, tag):
    val = copy.deepcopy(corpus)
    val.gen = torch.Generator().manual_seed(77)
    held = val.sample(64, args.length, order)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    model.train()
    for step in range(1, steps + 1):
        ids = corpus.sample(args.batch_size, args.length, order)
        loss = shifted_loss(model(ids), ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        opt.step()
        opt.zero_grad()
        if step % 20 == 0 or step == 1:
            print(f"{tag} step {step:4d} loss {loss.item():.4f} eval_loss {evaluate(model, held):.4f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=32)
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--batch_size", type=int, default=24)
    ap.add_argument("--pretrain_steps", type=int, default=180)
    ap.add_argument("--finetune_steps", type=int, default=160)
    ap.add_argument("--lora_r", type=int, default=16)
    ap.add_argument("--lora_alpha", type=int, default=32)
    ap.add_argument("--max_grad_norm", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=42)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    corpus = ChainCorpus(args.vocab, args.seed)
    lm = CausalLM(args.vocab)
    fit(lm, corpus, "a", args.pretrain_steps, 3e-3, args, "base")
    lm.gradient_checkpointing_enable()
    lm = get_peft_model(lm, args.lora_r, args.lora_alpha,
                        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    fit(lm, corpus, "b", args.finetune_steps, 4e-3, args, "lora")
