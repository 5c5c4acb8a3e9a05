import resource
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(29)

text = "".join(topics[k] for k in sorted(topics))[:150000]
itos = sorted(set(text))
stoi = {c: i for i, c in enumerate(itos)}
data = torch.tensor([stoi[c] for c in text])
cut = int(len(data) * 0.9)
T = 48


class GPTBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.register_buffer("mask", torch.ones(T, T, dtype=torch.bool).triu(1))

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.attn(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class CharGPT(nn.Module):
    def __init__(self, v, d=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v, d), nn.Embedding(T, d)
        self.blocks = nn.Sequential(GPTBlock(d), GPTBlock(d))
        self.head = nn.Linear(d, v)

    def forward(self, x, y):
        z = self.head(self.blocks(self.wte(x) + self.wpe.weight))
        return F.cross_entropy(z.flatten(0, 1), y.flatten())


class Monitor:
    def __init__(self, model, part):
        self.model, self.part = model, part
        self.history = {"train": [], "val": []}

    def batch(self, part, n):
        i = torch.randint(len(part) - T - 1, (n, 1)) + torch.arange(T + 1)
        return part[i][:, :-1], part[i][:, 1:]

    def measure(self):
        self.model.eval()
        loss = self.model(*self.batch(self.part, 12))
        self.model.train()
        self.history["val"].append(loss)
        return min(self.history["val"])


model = CharGPT(len(itos))
monitor = Monitor(model, data[cut:])
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for it in range(130):
    loss = model(*monitor.batch(data[:cut], 12))
    opt.zero_grad()
    loss.backward()
    opt.step()
    monitor.history["train"].append(loss.item())
    best = monitor.measure()
    if it % 13 == 0 or it == 129:
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"it {it} loss {loss.item():.4f} best_val {best.item():.4f} rss {rss}MB", flush=True)
