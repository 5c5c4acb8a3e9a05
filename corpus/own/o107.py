import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics

torch.set_num_threads(1)
random.seed(13)
torch.manual_seed(13)

sentences = []
for k in sorted(topics):
    for para in topics[k].split("\n\n"):
        words = [w.strip(".,()\"'`*:").lower() for w in para.split()]
        words = [w for w in words if w.isalpha()]
        if len(words) >= 24:
            sentences.append(words[:48])
freq = {}
for s in sentences:
    for w in s:
        freq[w] = freq.get(w, 0) + 1
vocab = {w: i + 2 for i, w in enumerate(sorted(freq, key=freq.get, reverse=True)[:1200])}


class Tower(nn.Module):
    def __init__(self, n_tokens, d=56, heads=4, depth=2, out=32):
        super().__init__()
        self.emb = nn.Embedding(n_tokens, d, padding_idx=0)
        self.pos = nn.Embedding(32, d)
        enc = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(enc, depth, enable_nested_tensor=False)
        self.proj = nn.Linear(d, out, bias=False)

    def forward(self, ids):
        pad = ids == 0
        h = self.emb(ids) + self.pos(torch.arange(ids.size(1)))
        h = self.enc(h, src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).float()
        return F.normalize(self.proj((h * keep).sum(1) / keep.sum(1)), dim=-1)


class Matcher(nn.Module):
    def __init__(self, tower):
        super().__init__()
        self.left = tower
        self.right = tower
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, a, b):
        scale = self.log_scale.exp().clamp(max=50.0)
        return scale * self.left(a) @ self.right(b).T


def crop(words, n):
    s = random.randrange(max(1, len(words) - n + 1))
    ids = [vocab.get(w, 1) for w in words[s:s + n] if random.random() > 0.1]
    return ids or [1]


def collate(batch):
    def pad(rows):
        width = max(map(len, rows))
        return torch.tensor([r + [0] * (width - len(r)) for r in rows])
    half = [len(s) // 2 for s in batch]
    return pad([crop(s[:h + 6], 16) for s, h in zip(batch, half)]), pad([crop(s[max(0, h - 6):], 16) for s, h in zip(batch, half)])


model = Matcher(Tower(len(vocab) + 2))
opt = torch.optim.AdamW([
    {"params": [p for n, p in model.named_parameters() if n != "log_scale"], "weight_decay": 0.01},
    {"params": [model.log_scale], "weight_decay": 0.0},
], lr=2e-3)
target = torch.arange(48)
for it in range(160):
    a, b = collate(random.sample(sentences, 48))
    logits = model(a, b)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 20 == 0 or it == 159:
        acc = (logits.argmax(1) == target).float().mean().item()
        print(f"{it} loss {loss.item():.4f} top1 {acc:.3f} scale {model.log_scale.exp().item():.2f}")
