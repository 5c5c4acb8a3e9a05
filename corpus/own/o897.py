import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(11)
VOCAB, BLOCK, DIM, HEADS, LAYERS = 16, 24, 64, 4, 2
table = torch.randperm(VOCAB)


def make_corpus(n, lag, noise=0.1):
    x = torch.randint(0, VOCAB, (n, BLOCK + 1))
    for t in range(lag, BLOCK + 1):
        keep = torch.rand(n) > noise
        x[:, t] = torch.where(keep, table[x[:, t - lag]], x[:, t])
    return x


class LoRALinear(nn.Module):
    def __init__(self, base, r=16, alpha=32):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.t() @ self.B.t()) * self.scale


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, gradient_checkpointing=False):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(BLOCK, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        self.gradient_checkpointing = gradient_checkpointing
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = block(x)
        return self.lm_head(self.norm(x))


def lm_loss(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    loss = lm_loss(model, data).item()
    model.train()
    return loss


def fit(model, data, steps, lr, tag):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1.0, (s + 1) / 30) * 0.5 * (1 + math.cos(math.pi * min(1.0, s / steps))))
    model.train()
    for step in range(steps):
        batch = data[torch.randint(0, len(data), (24,))]
        loss = lm_loss(model, batch)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"{tag} step {step:4d} loss {loss.item():.4f}")


pre_train, ft_train, ft_val = make_corpus(4000, 2), make_corpus(3000, 3), make_corpus(300, 3)
model = GPT()
fit(model, pre_train, 200, 3e-3, "pretrain")
print(f"zero-shot loss on new domain {evaluate(model, ft_val):.4f}")

for p in model.parameters():
    p.requires_grad_(False)
for block in model.blocks:
    for name in ("qkv", "proj", "up", "down"):
        setattr(block, name, LoRALinear(getattr(block, name)))
model.lm_head = LoRALinear(model.lm_head)
model.gradient_checkpointing = True
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"trainable params: {trainable}")
fit(model, ft_train, 300, 3e-3, "lora")
print(f"held-out loss on new domain {evaluate(model, ft_val):.4f}")
