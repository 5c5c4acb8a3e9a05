import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(36)

text = " ".join(" ".join(topics[k].split()) for k in sorted(topics))[:120000]
cs = sorted(set(text))
lookup = {c: i for i, c in enumerate(cs)}
ids = torch.tensor([lookup[c] for c in text])
V, T, D, H = len(cs), 32, 64, 4


class NoPEBlock(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.o = nn.Linear(D, D)
        self.fc, self.pr = nn.Linear(D, 3 * D), nn.Linear(3 * D, D)
        self.conv = nn.Conv1d(D, D, 3, groups=D)
        self.skip = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.pr.weight)

    def forward(self, x):
        b, t, d = x.shape
        c = self.conv(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = self.qkv(self.ln1(c)).view(b, t, 3, H, d // H).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.o(y)
        return x + self.pr(F.relu(self.fc(self.ln2(x))).square()) + self.skip * c


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        nn.init.normal_(self.emb.weight, std=0.15)
        self.blocks = nn.ModuleList([NoPEBlock(i) for i in range(2)])
        self.ln = nn.LayerNorm(D)

    def forward(self, x):
        h = self.emb(x)
        for b in self.blocks:
            h = b(h)
        return F.linear(self.ln(h), self.emb.weight)


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.05)
ACC, STEPS = 2, 130
for step in range(STEPS):
    for g in opt.param_groups:
        g["lr"] = 3e-3 * min((step + 1) / 15, (STEPS - step) / STEPS + 0.1)
    shown = 0.0
    for micro in range(ACC):
        w = ids[torch.randint(len(ids) - T - 1, (10, 1)) + torch.arange(T + 1)]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten(), label_smoothing=0.1, reduction="sum")
        (loss / (ACC * 10 * T)).backward()
        shown += loss.item() / (ACC * 10 * T)
    nn.utils.clip_grad_norm_(model.parameters(), 0.7)
    opt.step()
    opt.zero_grad()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"{step:3d} smoothed ce {shown:.4f}")
