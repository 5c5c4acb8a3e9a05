import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(88)

words = "\n".join(topics[k] for k in sorted(topics)).split("\n")
lines = [w.strip().encode("ascii", "ignore")[:48] for w in words if len(w.strip()) > 8]
PAD, MICRO, ACC, STEPS = 0, 4, 4, 90


def micro():
    rows = [lines[i] for i in torch.randint(0, len(lines), (MICRO,)).tolist()]
    width = max(map(len, rows))
    x = torch.zeros(MICRO, width, dtype=torch.long)
    for i, r in enumerate(rows):
        x[i, :len(r)] = torch.tensor(list(r))
    return x


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok, self.pos = nn.Embedding(128, d), nn.Embedding(48, d)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.tr = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)

    def forward(self, x):
        n = x.size(1)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        h = self.tr(self.tok(x) + self.pos.weight[:n], mask=mask)
        return h @ self.tok.weight.T


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
for i in range(STEPS * ACC):
    if i % ACC == 0:
        group = [micro() for _ in range(ACC)]
        count = sum((g[:, 1:] != PAD).sum() for g in group)
        total = 0.0
    x = group[i % ACC]
    logits = net(x[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=PAD, reduction="sum") / count
    loss.backward()
    total += loss.item()
    if (i + 1) % ACC:
        continue
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    opt.step()
    opt.zero_grad()
    s = i // ACC
    if s % 10 == 0 or s == STEPS - 1:
        print(f"update {s} loss {total:.4f}")
