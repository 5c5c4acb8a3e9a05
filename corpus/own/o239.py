from pydoc_data.topics import topics

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(55)
DIM, HEADS, CTX, BATCH = 256, 8, 16, 4


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        power = x.square().sum(-1, keepdim=True) / x.shape[-1]
        return x * torch.rsqrt(power + self.eps) * (1 + self.scale.to(x.dtype))


class GemmaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm = RMSNorm(DIM)
        self.post_norm = RMSNorm(DIM)
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.kv = nn.Linear(DIM, 2 * DIM // HEADS, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        self.gate = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, DIM, bias=False)
        self.down = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.input_norm(x)
        q = self.q(h).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = (z.view(b, t, 1, -1).transpose(1, 2).expand_as(q) for z in self.kv(h).chunk(2, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, DIM))
        h = self.post_norm(x)
        return x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))


class TinyGemma(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.place = nn.Embedding(CTX, DIM)
        self.blocks = nn.ModuleList([GemmaBlock()])
        self.norm = RMSNorm(DIM)
        self.head = nn.Linear(DIM, vocab, bias=False)

    def forward(self, ids):
        x = (self.embed(ids) + 0.1 * self.place.weight[: ids.size(1)]).half()
        x = x * torch.tensor(DIM ** 0.5, dtype=x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


text = topics["specialnames"] + topics["typesseq"] + topics["formatstrings"] + topics["dynamic-features"]
alphabet = sorted(set(text))
code = {c: i for i, c in enumerate(alphabet)}
data = torch.tensor([code[c] for c in text])

model = TinyGemma(len(alphabet))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-7)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=500)
for step in range(100):
    start = torch.randint(len(data) - CTX - 1, (BATCH,))
    window = data[start[:, None] + torch.arange(CTX + 1)]
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(window[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == 99:
        print(f"step {step:3d} loss {loss.item():.4f} scale {scaler.get_scale():g}")
