import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, lora_alpha=16):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = lora_alpha / r

    def forward(self, x):
        return self.base_layer(x) + (x @ self.lora_A.t() @ self.lora_B.t()) * self.scaling


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.heads, -1).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.up_proj = nn.Linear(dim, 2 * dim)
        self.down_proj = nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.ln2(x))))


class SequenceClassifier(nn.Module):
    def __init__(self, vocab=20, dim=48, depth=2, heads=4, num_labels=10, max_len=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.embed_positions = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.score = nn.Linear(dim, num_labels)

    def forward(self, ids):
        x = self.embed_tokens(ids) + self.embed_positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.score(self.norm(x[:, 0]))


def get_peft_model(model, target_modules=("q_proj", "v_proj", "up_proj", "down_proj")):
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in target_modules:
                setattr(module, name, LoRALinear(child))
    return model


def batch(n, marker):
    ids = torch.randint(0, 10, (n, 8))
    pos_a = torch.randint(1, 7, (n,))
    ids[:, 0] = 19
    rows = torch.arange(n)
    ids[rows, pos_a] = marker
    return ids, ids[rows, pos_a + 1]


def run_phase(name, model, params, lr, steps, marker):
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 15) * (1 - 0.9 * s / steps))
    for step in range(steps):
        ids, y = batch(48, marker)
        loss = F.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"{name} step {step} loss {loss.item():.4f}")
    with torch.no_grad():
        ids, y = batch(512, marker)
        print(f"{name} acc {(model(ids).argmax(-1) == y).float().mean().item():.3f}")


model = SequenceClassifier()
run_phase("pretrain", model, model.parameters(), 3e-3, 250, marker=15)

model = get_peft_model(model)
trainable = [p for p in model.parameters() if p.requires_grad]
total = sum(p.numel() for p in model.parameters())
print(f"trainable params: {sum(p.numel() for p in trainable)} || all params: {total}")
run_phase("lora", model, trainable, 5e-3, 140, marker=16)
