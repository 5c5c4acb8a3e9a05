import functools
import resource

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

V, T, TEMP = 256, 32, 2.0


class Grammar(Dataset):
    def __init__(self, n, seed=0):
        g = torch.Generator().manual_seed(seed)
        follow = torch.randint(V, (V, 4), generator=g)
        rows = [torch.randint(V, (n,), generator=g)]
        for _ in range(T):
            pick = torch.randint(4, (n,), generator=g)
            rows.append(follow[rows[-1], pick])
        self.rows, self.follow = torch.stack(rows, 1), follow

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i, :-1], self.rows[i, 1:]


class Teacher(nn.Module):
    def __init__(self, follow):
        super().__init__()
        bias = torch.zeros(V, V).scatter_add_(1, follow, torch.full(follow.shape, 6.0))
        self.bigram = nn.Embedding.from_pretrained(bias)

    def forward(self, x):
        return self.bigram(x)


class Student(nn.Module):
    def __init__(self, d=48, h=4):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Embedding(T, d)
        self.block = nn.TransformerEncoderLayer(d, h, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(d, V)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        h = self.emb(x) + self.pos.weight[:x.size(1)]
        return self.head(self.block(h, src_mask=mask, is_causal=True))


class Distiller:
    def __init__(self, teacher, student, lr):
        self.teacher, self.student = teacher.eval(), student
        self.opt = torch.optim.AdamW(student.parameters(), lr=lr)

    @functools.lru_cache(maxsize=None)
    def soft_targets(self, x):
        with torch.no_grad():
            return F.softmax(self.teacher(x) / TEMP, dim=-1)

    def step(self, x, y):
        out = self.student(x)
        soft = F.kl_div(F.log_softmax(out / TEMP, -1).flatten(0, 1), self.soft_targets(x).flatten(0, 1), reduction="batchmean")
        hard = F.cross_entropy(out.flatten(0, 1), y.flatten())
        loss = 0.5 * TEMP ** 2 * soft + 0.5 * hard
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


torch.manual_seed(31)
data = Grammar(1280)
loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
distiller = Distiller(Teacher(data.follow), Student(), 4e-3)
n = 0
for epoch in range(8):
    for x, y in loader:
        value = distiller.step(x, y)
        if n % 20 == 0 or n == 159:
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"epoch {epoch} step {n} loss {value:.4f} peak {rss} MB")
        n += 1
