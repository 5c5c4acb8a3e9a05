import itertools
import re
import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import Counter
from pydoc_data.topics import topics

torch.manual_seed(12)
words = re.findall(r"[A-Za-z]+|[^\sA-Za-z]", " ".join(topics[k] for k in sorted(topics)))
keep = [w for w, _ in Counter(words).most_common(511)]
index = {w: i + 1 for i, w in enumerate(keep)}
ids = torch.tensor([index.get(w, 0) for w in words])
V, T, B, TAU = 512, 32, 10, 2.0

counts = torch.zeros(V, V)
counts.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1), accumulate=True)
unigram = counts.sum(0) / counts.sum()
teacher_logits = torch.log((counts + 20 * unigram) / (counts.sum(1, keepdim=True) + 20) + 1e-7)


class Student(nn.Module):
    def __init__(self, d=48, heads=4):
        super().__init__()
        self.tok = nn.Embedding(V, d)
        self.pos = nn.Parameter(torch.zeros(T, d))
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.head = nn.Linear(d, V)
        self.heads = heads

    def forward(self, x):
        b, t = x.shape
        h = self.tok(x) + self.pos[:t]
        q, k, v = self.qkv(self.ln1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, t, -1))
        h = h + self.down(F.gelu(self.up(self.ln2(h))))
        return self.head(self.ln3(h))


def batches():
    for _ in itertools.count():
        at = torch.randint(len(ids) - T, (B,))
        yield ids[at[:, None] + torch.arange(T)]


student = Student()
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
for step, x in zip(range(110), batches()):
    target = F.softmax(teacher_logits[x] / TAU, dim=-1)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = student(x)
    logp = F.log_softmax(logits.float() / TAU, dim=-1)
    loss = nn.KLDivLoss()(logp, target) * TAU ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 109:
        agree = (logits.argmax(-1) == target.argmax(-1)).float().mean().item()
        print(f"step {step:3d} distill loss {loss.item():.6f} agreement {agree:.3f}")
