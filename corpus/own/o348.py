import torch
import torch.nn as nn
from torch.nn import functional as F
from pydoc_data.topics import topics


class Experts(nn.Module):
    def __init__(self, n_embd, n_expert=4, top_k=2, hidden=128):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(n_embd, n_expert, bias=False)
        self.w_in = nn.Parameter(torch.randn(n_expert, n_embd, hidden) * n_embd ** -0.5)
        self.b_in = nn.Parameter(torch.zeros(n_expert, 1, hidden))
        self.w_out = nn.Parameter(torch.randn(n_expert, hidden, n_embd) * hidden ** -0.5)

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        scores, chosen = self.gate(flat).softmax(-1).topk(self.top_k, dim=-1)
        scores = scores / scores.sum(-1, keepdim=True)
        weight = torch.zeros(flat.size(0), self.w_in.size(0)).scatter(1, chosen, scores)
        h = F.gelu(torch.matmul(flat, self.w_in) + self.b_in)
        y = (torch.bmm(h, self.w_out) * weight.t().unsqueeze(-1)).sum(0)
        return y.view_as(x), weight.mean(0)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True, bias=False)
        self.ln2 = nn.LayerNorm(n_embd)
        self.moe = Experts(n_embd)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(block_size))

    def forward(self, x):
        t = x.size(1)
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=self.mask[:t, :t], need_weights=False)[0]
        y, load = self.moe(self.ln2(x))
        return x + y, load


class MoEGPT(nn.Module):
    def __init__(self, vocab, block_size, n_embd=48, n_head=4, n_layer=2):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab, n_embd)
        self.pos_emb = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList([Block(n_embd, n_head, block_size) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab, bias=False)
        self.head.weight = self.tok_emb.weight
        nn.init.normal_(self.tok_emb.weight, std=0.1)
        nn.init.normal_(self.pos_emb.weight, std=0.02)

    def configure_optimizers(self, lr, weight_decay):
        decay, no_decay = set(), set()
        whitelist = (nn.Linear,)
        blacklist = (nn.LayerNorm, nn.Embedding)
        for mn, m in self.named_modules():
            for pn, p in m.named_parameters(recurse=False):
                if pn.endswith("bias") or isinstance(m, blacklist):
                    no_decay.add(p)
                elif isinstance(m, whitelist):
                    decay.add(p)
        decay -= no_decay
        return torch.optim.AdamW([
            {"params": [p for p in self.parameters() if p in decay], "weight_decay": weight_decay},
            {"params": [p for p in self.parameters() if p in no_decay], "weight_decay": 0.0},
        ], lr=lr, betas=(0.9, 0.95))

    def forward(self, idx, targets):
        x = self.tok_emb(idx) + self.pos_emb.weight[:idx.size(1)]
        balance = 0.0
        for block in self.blocks:
            x, load = block(x)
            balance = balance + load.square().sum() * load.numel()
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1)), balance


if __name__ == "__main__":
    torch.manual_seed(2024)
    text = " ".join(" ".join(topics[k].split()) for k in list(topics)[:40])
    vocab = sorted(set(text))
    ids = torch.tensor([vocab.index(c) for c in text])
    T = 40
    model = MoEGPT(len(vocab), T)
    optimizer = model.configure_optimizers(lr=3e-3, weight_decay=0.1)
    for n_iter in range(201):
        start = torch.randint(len(ids) - T - 1, (12, 1))
        rows = ids[start + torch.arange(T + 1)]
        ce, balance = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss = ce + 0.01 * balance
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if n_iter % 20 == 0:
            print(f"iter {n_iter}: train loss {ce.item():.5f} balance {float(balance.detach()):.3f}")
