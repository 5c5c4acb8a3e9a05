import random
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

COLORS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0), "white": (1, 1, 1)}
PLACES = [(r, c) for r in ("top", "middle", "bottom") for c in ("left", "center", "right")]
WORDS = ["<pad>", "<bos>", "<eos>", "a", "big", "small", "box", "and", *COLORS, "top", "middle", "bottom",
         "left", "center", "right"]
W2I = {w: i for i, w in enumerate(WORDS)}
SIDE = 18


class Scenes(Dataset):

    def __init__(self, n, seed):
        rng = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.data = []
        for _ in range(n):
            img = 0.1 * torch.randn(3, SIDE, SIDE, generator=g)
            words = []
            for cell in sorted(rng.sample(range(9), rng.choice([1, 2]))):
                name, size = rng.choice(list(COLORS)), rng.choice(["big", "small"])
                r, c = divmod(cell, 3)
                y, x, s = (r * 6, c * 6, 6) if size == "big" else (r * 6 + 1, c * 6 + 1, 3)
                img[:, y:y + s, x:x + s] += torch.tensor(COLORS[name]).float()[:, None, None]
                words += (["and"] if words else []) + ["a", size, name, "box", *PLACES[cell]]
            self.data.append((img, [W2I[w] for w in ["<bos>", *words, "<eos>"]]))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i]


def pad_collate(batch):
    batch = sorted(batch, key=lambda b: len(b[1]), reverse=True)
    images = [b[0] for b in batch]
    captions = [b[1] for b in batch]
    lengths = [len(c) for c in captions]
    caps = torch.zeros(len(batch), lengths[0], dtype=torch.long)
    for row, c in zip(caps, captions):
        row[:len(c)] = torch.tensor(c)
    return torch.stack(images), caps


class Captioner(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 6, 6)
        self.img_pos = nn.Parameter(torch.randn(9, d) * 0.1)
        self.tok = nn.Embedding(len(WORDS), d, padding_idx=0)
        self.txt_pos = nn.Parameter(torch.randn(20, d) * 0.1)
        layer = nn.TransformerDecoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.dec = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(d))
        self.out = nn.Linear(d, len(WORDS))

    def forward(self, img, cap):
        mem = self.patch(img).flatten(2).transpose(1, 2) + self.img_pos
        T = cap.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.dec(self.tok(cap) + self.txt_pos[:T], mem, tgt_mask=mask)
        return self.out(h)


torch.manual_seed(2)
train = DataLoader(Scenes(4000, 0), batch_size=32, shuffle=True, collate_fn=pad_collate)
test = Scenes(100, 1)
model = Captioner()
criterion = nn.CrossEntropyLoss(ignore_index=0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.6)

for epoch in range(4):
    total = 0.0
    for i, (img, cap) in enumerate(train, 1):
        logits = model(img, cap[:, :-1])
        loss = criterion(logits.transpose(1, 2), cap[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        if i % 25 == 0:
            print(f"Epoch [{epoch + 1}/4], Step [{i}/{len(train)}], Loss: {total / 25:.4f}", flush=True)
            total = 0.0
    scheduler.step()

model.eval()
exact = 0
with torch.no_grad():
    for img, cap in test:
        seq = [W2I["<bos>"]]
        while seq[-1] != W2I["<eos>"] and len(seq) < 18:
            seq.append(model(img[None], torch.tensor([seq]))[0, -1].argmax().item())
        exact += seq == cap
print(f"captions fully right: {exact}/{len(test)}")
print("sample:", " ".join(WORDS[i] for i in seq))
