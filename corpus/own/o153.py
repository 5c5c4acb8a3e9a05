import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(23)

V, T, C = 30, 12, 5
group = torch.randint(0, C, (V,))


def batch(n):
    y = torch.randint(0, C, (n,))
    x = torch.randint(0, V, (n, T))
    for c in range(C):
        words = (group == c).nonzero()[:, 0]
        rows = (y == c).nonzero()[:, 0]
        for place in torch.randperm(T)[:5].tolist():
            x[rows, place] = words[torch.randint(0, len(words), (len(rows),))]
    return x, y


class Reader(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.words, self.places = nn.Embedding(V, d), nn.Parameter(torch.randn(T, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.2, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(d, C)

    def forward(self, x):
        h = self.body(self.words(x) + self.places)
        return self.out(self.drop(h.mean(1)))


student = Reader()
teacher = copy.deepcopy(student)
for p in teacher.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
for step in range(200):
    (x, y), (u, _) = batch(24), batch(48)
    with torch.no_grad():
        soft = teacher(u).softmax(-1)
    both = student(torch.cat([x, u]))
    consistency = F.mse_loss(both[24:].softmax(-1), soft)
    loss = F.cross_entropy(both[:24], y) + min(1.0, step / 80) * 5 * consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters()):
            mine.lerp_(theirs, 1 - min(0.99, 1 - 1 / (step + 2)))
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} consistency {consistency.item():.4f}")
