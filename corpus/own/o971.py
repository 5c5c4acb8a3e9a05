import math
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
torch.manual_seed(0)

V, T, D = 32, 32, 64


def echo_task(bs, lag, gen):
    """tokens repeat what was said `lag` positions before, with some fresh ones in between"""
    x = torch.randint(V, (bs, T + 1), generator=gen)
    keep = torch.rand(bs, T + 1, generator=gen) < 0.85
    for t in range(lag, T + 1):
        x[:, t] = torch.where(keep[:, t], x[:, t - lag], x[:, t])
    return x[:, :-1], x[:, 1:]


class SelfAttention(nn.Module):
    def __init__(self, n_head=4):
        super().__init__()
        self.n_head = n_head
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x):
        B, n, _ = x.shape
        q, k, v = (p(x).view(B, n, self.n_head, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, n, D))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = SelfAttention()
        self.up_proj, self.down_proj = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        x = x + self.attn(self.input_norm(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.post_norm(x))))


class CausalLM(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.pos = nn.Embedding(T, D)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(layers))
        self.norm = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, V, bias=False)
        self.gradient_checkpointing = False

    def forward(self, ids, labels):
        x = self.embed(ids) + self.pos(torch.arange(ids.size(1)))
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class LoRALinear(nn.Module):
    def __init__(self, base, r, alpha):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


def get_peft_model(model, r=8, alpha=16, targets=("q_proj", "k_proj", "v_proj", "o_proj", "up_proj"), modules_to_save=("norm", "lm_head")):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, r, alpha))
    for name in modules_to_save:
        getattr(model, name).requires_grad_(True)
    return model


class Trainer:
    def __init__(self, model, lag, lr, steps, tag, bs=32):
        self.model, self.lag, self.steps, self.tag, self.bs = model, lag, steps, tag, bs
        self.gen = torch.Generator().manual_seed(lag)
        self.opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda s: min(1, (s + 1) / 20) * (1 - s / (steps + 1)))

    def evaluate(self):
        self.model.eval()
        x, y = echo_task(128, self.lag, torch.Generator().manual_seed(999))
        with torch.no_grad():
            loss, logits = self.model(x, y)
        self.model.train()
        return loss.item(), (logits.argmax(-1) == y)[:, self.lag:].float().mean().item()

    def train(self):
        self.model.train()
        for step in range(self.steps):
            loss, _ = self.model(*echo_task(self.bs, self.lag, self.gen))
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            if step % 20 == 0 or step == self.steps - 1:
                print(f"{self.tag} step {step} loss {loss.item():.4f}")
        print("%s eval loss %.4f acc %.3f" % (self.tag, *self.evaluate()))


model = CausalLM()
Trainer(model, lag=2, lr=2e-3, steps=160, tag="pretrain").train()

model = get_peft_model(model)
model.gradient_checkpointing = True
n_train = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"trainable params: {n_train} of {sum(p.numel() for p in model.parameters())}")
Trainer(model, lag=5, lr=4e-3, steps=200, tag="finetune").train()
