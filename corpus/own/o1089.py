import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ALPHABET = "HPCK"
MASK, PAD = 4, 5
PAIR = torch.tensor([1, 0, 3, 2])


class FoldDataset(Dataset):
    def __init__(self, n, longest, seed):
        g = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(n):
            half = int(torch.randint(4, longest // 2 + 1, (1,), generator=g))
            left = torch.randint(4, (half,), generator=g)
            right = PAIR[left].flip(0)
            noise = torch.rand(half, generator=g) < 0.03
            right = torch.where(noise, torch.randint(4, (half,), generator=g), right)
            self.rows.append(torch.cat([left, right]))
        self.rows.sort(key=len)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class MaskCollator:
    def __init__(self, rate, seed):
        self.rate, self.g = rate, torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), PAD)
        for i, r in enumerate(rows):
            ids[i, : len(r)] = r
        real = ids != PAD
        pick = (torch.rand(ids.shape, generator=self.g) < self.rate) & real
        labels = torch.where(pick, ids, torch.tensor(-100))
        ends = torch.stack([torch.arange(width).expand(len(rows), -1),
                            real.sum(1, keepdim=True) - 1 - torch.arange(width)], -1).clamp(min=0)
        return torch.where(pick, torch.tensor(MASK), ids), labels, ~real, ends


class ResidueModel(nn.Module):
    def __init__(self, dim=64, depth=2, longest=24):
        super().__init__()
        self.tok = nn.Embedding(6, dim, padding_idx=PAD)
        self.front, self.back = nn.Embedding(longest, dim), nn.Embedding(longest, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, 4)

    def forward(self, ids, padding, ends):
        x = self.tok(ids) + self.front(ends[..., 0]) + self.back(ends[..., 1])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return self.out(self.norm(x))


def score(model, loader):
    model.eval()
    loss = hit = n = 0.0
    with torch.no_grad():
        for ids, labels, padding, ends in loader:
            out, keep = model(ids, padding, ends), labels != -100
            loss += F.cross_entropy(out[keep], labels[keep], reduction="sum").item()
            hit += (out[keep].argmax(-1) == labels[keep]).sum().item()
            n += keep.sum().item()
    model.train()
    return loss / n, hit / n


def main():
    torch.manual_seed(14)
    stages = [(8, 60), (12, 60), (16, 80), (24, 100)]
    model = ResidueModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    valid = DataLoader(FoldDataset(300, 24, 999), batch_size=50, collate_fn=MaskCollator(0.15, 5))
    step = 0
    for stage, (longest, batches) in enumerate(stages):
        loader = DataLoader(FoldDataset(batches * 32, longest, stage), batch_size=32, shuffle=False,
                            collate_fn=MaskCollator(0.15, stage))
        for ids, labels, padding, ends in loader:
            loss = F.cross_entropy(model(ids, padding, ends).flatten(0, 1), labels.flatten(), ignore_index=-100)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"stage {stage} step {step} width {ids.shape[1]} loss {loss.item():.4f}")
            step += 1
        v, acc = score(model, valid)
        print(f"stage {stage} done: valid loss {v:.4f} masked accuracy {acc:.4f}")


main()
