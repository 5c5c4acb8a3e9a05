import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(7)

corpus = "".join(topics[k] for k in sorted(topics))[:400000]
alphabet = sorted(set(corpus))
lut = {c: i for i, c in enumerate(alphabet)}
ids = torch.tensor([lut[c] for c in corpus])
split = int(len(ids) * 0.95)
T, B, D, H = 48, 16, 64, 4


def sample(part):
    src = ids[:split] if part == "train" else ids[split:]
    starts = torch.randint(0, len(src) - T - 1, (B,))
    win = src[starts[:, None] + torch.arange(T + 1)]
    return win[:, :-1], win[:, 1:]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = [z.view(b, t, H, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1)]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class SinkLM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, D)
        self.wpe = nn.Embedding(T + 1, D)
        self.sink = nn.Parameter(torch.randn(1, 1, D) * 0.02)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.norm = nn.LayerNorm(D)
        self.lm_head = nn.Linear(D, vocab, bias=False)
        for w in (self.wte, self.wpe):
            nn.init.normal_(w.weight, std=0.02)

    def forward(self, idx, y=None):
        b, t = idx.shape
        h = torch.cat([self.sink.expand(b, 1, D), self.wte(idx)], dim=1)
        h = h + self.wpe.weight[: t + 1]
        for layer in self.layers:
            h = layer(h)
        logits = self.lm_head(self.norm(h))[:, :-1]
        if y is None:
            return logits
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), y.reshape(-1))


net = SinkLM(len(alphabet))
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05)
for step in range(220):
    for g in opt.param_groups:
        g["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
    loss = net(*sample("train"))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    if step % 20 == 0 or step == 219:
        print(f"step {step:4d} loss {loss.item():.4f}")
with torch.no_grad():
    val = sum(net(*sample("val")).item() for _ in range(10)) / 10
print(f"validation loss {val:.4f}")
