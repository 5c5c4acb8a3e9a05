import torch
import torch.nn as nn
from torch.utils.data import DataLoader

AMINO, PAD, MASK = 20, 20, 21
MAXLEN = 28
torch.manual_seed(77)
source = torch.Generator().manual_seed(77)
partner = torch.randperm(AMINO, generator=source)
families = torch.randint(0, AMINO, (6, MAXLEN // 2), generator=source)


def protein(g):
    fam = families[int(torch.randint(0, 6, (1,), generator=g))]
    half = int(torch.randint(6, MAXLEN // 2 + 1, (1,), generator=g))
    strand = fam[:half].clone()
    mut = torch.rand(half, generator=g) < 0.25
    strand[mut] = torch.randint(0, AMINO, (int(mut.sum()),), generator=g)
    return torch.cat([strand, partner[strand].flip(0)])


def collate(batch, g=torch.Generator().manual_seed(1)):
    width = max(len(s) for s in batch)
    ids = torch.full((len(batch), width), PAD)
    for i, s in enumerate(batch):
        ids[i, :len(s)] = s
    real = ids != PAD
    pick = (torch.rand(ids.shape, generator=g) < 0.15) & real
    pick[:, 0] |= ~pick.any(1)
    labels = ids.masked_fill(~pick, -100)
    roll = torch.rand(ids.shape, generator=g)
    inputs = ids.clone()
    inputs[pick & (roll < 0.8)] = MASK
    swap = pick & (roll > 0.9)
    inputs[swap] = torch.randint(0, AMINO, (int(swap.sum()),), generator=g)
    return inputs, labels, ~real


class ProteinMLM(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(AMINO + 2, d, padding_idx=PAD)
        self.front = nn.Embedding(MAXLEN, d)
        self.back = nn.Embedding(MAXLEN, d)
        layer = nn.TransformerEncoderLayer(d, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d), nn.Linear(d, AMINO), nn.LogSoftmax(-1))

    def forward(self, x, pad):
        i = torch.arange(x.size(1)).expand_as(x)
        n = (~pad).sum(1, keepdim=True)
        h = self.emb(x) + self.front(i) + self.back((n - 1 - i).clamp(min=0))
        return self.head(self.enc(h, src_key_padding_mask=pad))


train = [protein(source) for _ in range(4000)]
valid = [protein(source) for _ in range(500)]
model = ProteinMLM()
criterion = nn.NLLLoss(ignore_index=-100)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
loader = DataLoader(train, 64, shuffle=True, collate_fn=collate)
val_batches = list(DataLoader(valid, 125, collate_fn=collate))
epochs = 8
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, epochs=epochs, steps_per_epoch=len(loader), pct_start=0.15)

for epoch in range(epochs):
    model.train()
    tot = 0.0
    for x, y, pad in loader:
        loss = criterion(model(x, pad).transpose(1, 2), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        tot += loss.item()
    model.eval()
    hit = cnt = 0
    with torch.no_grad():
        for x, y, pad in val_batches:
            sel = y >= 0
            hit += (model(x, pad).argmax(-1)[sel] == y[sel]).sum().item()
            cnt += sel.sum().item()
    print(f"epoch {epoch} mlm loss {tot / len(loader):.4f} masked accuracy {hit / cnt:.4f}")
