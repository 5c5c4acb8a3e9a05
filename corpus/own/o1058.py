import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VOCAB, LEN = 80, 24


def annotator(seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(VOCAB, generator=g)


class PreferencePairs(Dataset):
    def __init__(self, size, seed, taste, temperature):
        g = torch.Generator().manual_seed(seed)
        self.a = torch.randint(1, VOCAB, (size, LEN), generator=g)
        self.b = torch.randint(1, VOCAB, (size, LEN), generator=g)
        gap = (taste[self.a].sum(1) - taste[self.b].sum(1)) / LEN ** 0.5
        p = torch.sigmoid(gap / temperature)
        self.prefer_a = torch.rand(size, generator=g) < p
        self.best = gap > 0

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        win, lose = (self.a[i], self.b[i]) if self.prefer_a[i] else (self.b[i], self.a[i])
        return {"chosen": win, "rejected": lose}


class RewardModel(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(LEN, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.value = nn.Linear(dim, 1, bias=False)

    def forward(self, ids):
        h = self.enc(self.emb(ids) + self.pos.weight)
        return self.value(self.norm(h.mean(1))).squeeze(-1)


@torch.no_grad()
def evaluate(model, data):
    ra, rb = model(data.a), model(data.b)
    votes = ((ra > rb) == data.prefer_a).float().mean().item()
    taste_hit = ((ra > rb) == data.best).float().mean().item()
    return votes, taste_hit


def main():
    torch.manual_seed(13)
    taste = annotator()
    train = PreferencePairs(7200, 1, taste, 1.4)
    test = PreferencePairs(800, 2, taste, 1.4)
    model = RewardModel()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=len(loader), pct_start=0.1)
    for step, batch in enumerate(loader, 1):
        r = model(torch.cat([batch["chosen"], batch["rejected"]]))
        win, lose = r.chunk(2)
        loss = -F.logsigmoid(win - lose).mean() + 1e-3 * (r ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} margin {(win - lose).mean().item():.3f}")
        if step % 75 == 0:
            votes, taste_hit = evaluate(model, test)
            print(f"step {step} agreement with votes {votes:.3f} with taste {taste_hit:.3f}")


if __name__ == "__main__":
    main()
