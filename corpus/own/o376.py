import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(150)
WORDS, LEN, CLASSES, TEMP = 80, 18, 6, 4.0
theme = torch.randint(CLASSES, (WORDS,))


def sentences(n):
    y = torch.randint(CLASSES, (n,))
    x = torch.randint(WORDS, (n, LEN))
    for i in range(n):
        pool = (theme == y[i]).nonzero().squeeze(1)
        hit = torch.rand(LEN) < 0.25
        x[i, hit] = pool[torch.randint(len(pool), (int(hit.sum()),))]
    return x, y


class Teacher(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, d, mode="sum")
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, CLASSES))

    def forward(self, x):
        return self.mlp(self.bag(x) / LEN)


class SharedStudent(nn.Module):
    def __init__(self, d=48, loops=3):
        super().__init__()
        self.loops = loops
        self.emb = nn.Embedding(WORDS, d)
        self.qkv = nn.Linear(d, 3 * d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.gain = nn.Parameter(torch.zeros(loops, 2))
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x):
        h = self.emb(x)
        for i in range(self.loops):
            q, k, v = self.qkv(self.n1(h)).chunk(3, -1)
            h = h + self.gain[i, 0] * F.scaled_dot_product_attention(q, k, v)
            h = h + self.gain[i, 1] * self.ff(self.n2(h))
        return self.head(h.mean(1))


teacher = Teacher()
topt = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for i in range(80):
    x, y = sentences(48)
    loss = F.cross_entropy(teacher(x), y)
    topt.zero_grad()
    loss.backward()
    topt.step()
print("teacher acc", round((teacher(x).argmax(-1) == y).float().mean().item(), 3))
teacher.eval().requires_grad_(False)

student = SharedStudent()
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 60, eta_min=3e-5)
for step in range(180):
    x, y = sentences(48)
    with torch.no_grad():
        soft = F.log_softmax(teacher(x) / TEMP, -1)
    out = student(x)
    kd = F.kl_div(F.log_softmax(out / TEMP, -1), soft, reduction="batchmean", log_target=True) * TEMP ** 2
    loss = 0.9 * kd + 0.1 * F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 15 == 0 or step == 179:
        acc = (out.argmax(-1) == y).float().mean().item()
        print(f"student step {step} loss {loss.item():.4f} acc {acc:.3f}")
