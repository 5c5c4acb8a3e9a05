import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from pydoc_data.topics import topics

torch.set_num_threads(1)
torch.manual_seed(77)


class Windows(Dataset):
    def __init__(self, ids, length, stride):
        self.ids, self.length = ids, length
        self.starts = range(0, len(ids) - length - 1, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        return self.ids[s:s + self.length], self.ids[s + 1:s + self.length + 1]


class CountTeacher(nn.Module):
    def __init__(self, ids, vocab, smoothing=0.05):
        super().__init__()
        counts = torch.full((vocab, vocab, vocab), smoothing / vocab)
        a, b, c = ids[:-2], ids[1:-1], ids[2:]
        counts.view(-1).index_add_(0, (a * vocab + b) * vocab + c, torch.ones(len(a)))
        back = counts.sum(0)
        counts = counts + 2.0 * (back / back.sum(-1, keepdim=True))[None]
        table = counts / counts.sum(-1, keepdim=True)
        self.register_buffer("table", table)

    def forward(self, x):
        prev = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        return self.table[prev, x]


class Student(nn.Module):
    def __init__(self, vocab, d=64, heads=4, depth=2, ctx=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.zeros(1, ctx, d))
        block = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.fc = nn.Linear(d, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(ctx))

    def forward(self, x):
        t = x.size(1)
        h = self.enc(self.emb(x) + self.pos[:, :t], mask=self.mask[:t, :t])
        return self.fc(h)


def distillation_loss(student_scores, teacher_scores, labels, tau, alpha):
    v = student_scores.size(-1)
    hard = F.cross_entropy(student_scores.view(-1, v), labels.reshape(-1))
    p = F.softmax(teacher_scores / tau, dim=-1).view(-1, v)
    logq = F.log_softmax(student_scores / tau, dim=-1).view(-1, v)
    soft = F.kl_div(logq, p, reduction="batchmean") * tau ** 2
    return alpha * soft + (1 - alpha) * hard, hard.detach(), soft.detach()


text = "".join(topics[k] for k in sorted(topics)).lower()
keep = "abcdefghijklmnopqrstuvwxyz0123456789 \n.,()'_\"-:=[]"
text = "".join(c for c in text if c in keep)
lut = {c: i for i, c in enumerate(keep)}
ids = torch.tensor([lut[c] for c in text])
cut = int(len(ids) * 0.9)

teacher = CountTeacher(ids[:cut], len(keep)).eval()
student = Student(len(keep))
loader = DataLoader(Windows(ids[:cut], 48, 40), batch_size=16, shuffle=True)
held = next(iter(DataLoader(Windows(ids[cut:], 48, 48), batch_size=64, shuffle=True)))
optim = torch.optim.AdamW(student.parameters(), lr=2e-3)

for step, (x, y) in enumerate(loader):
    if step == 200:
        break
    with torch.no_grad():
        t_out = teacher(x)
    loss, hard, soft = distillation_loss(student(x), t_out, y, tau=1.5, alpha=0.8)
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step % 25 == 0 or step == 199:
        with torch.no_grad():
            ev = F.cross_entropy(student(held[0]).flatten(0, 1), held[1].flatten()).item()
        print(f"{step:>4} total {loss.item():.4f} soft {soft.item():.4f} hard {hard.item():.4f} | held-out loss {ev:.4f}")
