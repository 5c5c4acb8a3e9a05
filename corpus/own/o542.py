import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

N_DIGITS, N_SORT = 6, 8
VOCAB = N_DIGITS + 1
SEP = N_DIGITS
LENGTH = 2 * N_SORT + 1
MICRO, ACCUM, UPDATES = 24, 2, 250


class SortDigits(Dataset):

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        x = torch.randint(N_DIGITS, (N_SORT,), generator=g)
        seq = torch.cat([x, torch.tensor([SEP]), x.sort().values])
        labels = seq.clone()
        labels[: N_SORT + 1] = -100
        return seq, labels


class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.in_proj = nn.Linear(d, 3 * d)
        self.out_proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.h, d // self.h).unbind(2)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * (d // self.h) ** -0.5
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        return self.out_proj(torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).reshape(b, t, d))


class Model(nn.Module):
    def __init__(self, d=64, h=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(LENGTH, d) * 0.02)
        self.attn = nn.ModuleList([Attention(d, h) for _ in range(layers)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(layers)])
        self.n1 = nn.ModuleList([nn.LayerNorm(d) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.LayerNorm(d) for _ in range(layers)])
        self.nf = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)
        nn.init.normal_(self.emb.weight, std=0.05)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.size(1)]
        for a, m, n1, n2 in zip(self.attn, self.mlp, self.n1, self.n2):
            x = x + a(n1(x))
            x = x + m(n2(x))
        return self.head(self.nf(x))


def lm_loss(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUM)
    set_seed(9)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20) * max(0.05, 1 - s / UPDATES))
    train = DataLoader(SortDigits(MICRO * ACCUM * UPDATES, seed=1), batch_size=MICRO, shuffle=True)
    val = DataLoader(SortDigits(256, seed=2), batch_size=128)
    model, opt, train, val, sched = accelerator.prepare(model, opt, train, val, sched)

    def evaluate():
        model.eval()
        hit = total = 0
        for ids, labels in val:
            with torch.no_grad():
                pred = model(ids)[:, :-1].argmax(-1)
            pred, tgt = accelerator.gather_for_metrics((pred, labels[:, 1:]))
            keep = tgt != -100
            hit += (pred[keep] == tgt[keep]).sum().item()
            total += keep.sum().item()
        model.train()
        return hit / total

    model.train()
    updates, window = 0, []
    for ids, labels in train:
        with accelerator.accumulate(model):
            loss = lm_loss(model(ids), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        window.append(loss.item())
        if accelerator.sync_gradients:
            updates += 1
            if updates == 1 or updates % 50 == 0:
                accelerator.print(f"update {updates:4d}  loss {sum(window) / len(window):.4f}  val accuracy {evaluate():.3f}")
                window.clear()


if __name__ == "__main__":
    main()
