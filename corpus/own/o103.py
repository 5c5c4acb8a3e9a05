import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(2024)
CTX = 48


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * self.scaling


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q_proj, self.k_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.v_proj, self.o_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        y = self.ln1(x)
        q, k, v = (p(y).view(b, t, self.h, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class LM(nn.Module):
    def __init__(self, vocab, d=64, h=4, n=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(CTX, d)
        self.blocks = nn.ModuleList([Block(d, h) for _ in range(n)])
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.size(1)))
        for b in self.blocks:
            h = b(h)
        return self.head(self.ln(h))


def add_adapters(model, names=("q_proj", "v_proj", "up", "down")):
    for p in model.parameters():
        p.requires_grad_(False)
    for block in model.blocks:
        for n in names:
            setattr(block, n, LoRALinear(getattr(block, n)))
    return [p for p in model.parameters() if p.requires_grad]


def fetch(data, n=16):
    i = torch.randint(len(data) - CTX - 1, (n, 1)) + torch.arange(CTX + 1)
    w = data[i]
    return w[:, :-1], w[:, 1:]


def train(model, params, data, lr, steps, tag):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    for s in range(steps):
        x, y = fetch(data)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 20 == 0 or s == steps - 1:
            print(f"{tag} step {s} loss {loss.item():.4f}")


prose = "".join(topics[k] for k in sorted(topics)).lower()
chars = sorted(set(prose) | set(prose.upper()))
stoi = {c: i for i, c in enumerate(chars)}
base_data = torch.tensor([stoi[c] for c in prose])
shift = str.maketrans("aeioutnsr", "eiouansrt")
new_data = torch.tensor([stoi[c] for c in prose.translate(shift)])

model = LM(len(chars))
train(model, model.parameters(), base_data, 2e-3, 90, "pretrain")
trainable = add_adapters(model)
print("trainable", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in model.parameters()))
train(model, trainable, new_data, 4e-3, 130, "adapt")
