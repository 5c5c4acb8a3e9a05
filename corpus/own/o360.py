import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(88)
V, T, C = 80, 16, 20


class World:
    def __init__(self):
        self.g = torch.Generator().manual_seed(1)
        self.profile = torch.randn(C, V, generator=self.g).mul(1.4).softmax(-1)

    def draw(self, n):
        y = torch.randint(C, (n,), generator=self.g)
        x = torch.multinomial(self.profile[y], T, replacement=True, generator=self.g)
        return x, y


class Net(nn.Module):
    def __init__(self, emb, d, depth, p):
        super().__init__()
        self.emb = emb
        self.inp = nn.Linear(emb.embedding_dim, d)
        layer = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=p, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Linear(d, C)

    def forward(self, x):
        return self.out(self.enc(self.inp(self.emb(x))).mean(1))


world = World()
shared = nn.Embedding(V, 32)
teacher = Net(shared, 64, 2, 0.1)
opt = torch.optim.Adam(teacher.parameters(), lr=1e-3)
teacher.train()
for i in range(120):
    x, y = world.draw(32)
    loss = F.cross_entropy(teacher(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i % 20 == 0:
        print(f"teacher {i} loss {loss.item():.3f}")

teacher.eval()
for p in teacher.parameters():
    p.requires_grad = False

student = Net(shared, 32, 1, 0.0)
student_opt = torch.optim.SGD([p for p in student.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
TAU, ALPHA = 3.0, 0.8
student.train()
for i in range(160):
    x, y = world.draw(32)
    with torch.no_grad():
        guide = teacher(x)
    logits = student(x)
    soft = F.kl_div(F.log_softmax(logits / TAU, -1), F.softmax(guide / TAU, -1), reduction="batchmean") * TAU ** 2
    hard = F.cross_entropy(logits, y)
    loss = ALPHA * soft + (1 - ALPHA) * hard
    student_opt.zero_grad()
    loss.backward()
    student_opt.step()
    if i % 20 == 0 or i == 159:
        agree = (logits.argmax(1) == guide.argmax(1)).float().mean().item()
        print(f"student {i} loss {loss.item():.3f} hard {hard.item():.3f} agree {agree:.2f}")
