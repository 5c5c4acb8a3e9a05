import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MLPMixer(nn.Module):
    def __init__(self, tokens, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.chan = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.mix(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


class Net(nn.Module):
    def __init__(self, d, depth, tokens=12, vocab=32, classes=10):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.Sequential(*[MLPMixer(tokens, d) for _ in range(depth)])
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, classes))

    def forward(self, x):
        return self.out(self.blocks(self.embed(x)).mean(1))


def epoch(student, teacher, loader, lr, temperature=2.0):
    optimizer = torch.optim.SGD(student.parameters(), lr=lr, momentum=0.95, nesterov=True)
    total = 0.0
    for (x,) in loader:
        with torch.no_grad():
            soft = (teacher(x) / temperature).softmax(-1)
        loss = F.kl_div((student(x) / temperature).log_softmax(-1), soft, reduction="batchmean") * temperature ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


torch.manual_seed(20)
teacher = Net(48, 2).eval().requires_grad_(False)
teacher.out[1].weight.mul_(12)
student = Net(40, 2)
data = TensorDataset(torch.randint(32, (6000, 12)))
print("student", sum(p.numel() for p in student.parameters()))
for e in range(60):
    part = torch.utils.data.Subset(data, torch.randint(6000, (192,)).tolist())
    lr = 0.02 * (1 - e / 80)
    mean = epoch(student, teacher, DataLoader(part, batch_size=48, shuffle=True), lr)
    if e % 5 == 0 or e == 59:
        print(f"epoch {e} loss {mean:.4f} lr {lr:.4f}")
