import torch
from torch import nn
import torch.nn.functional as F

SEED = 21
N_INTENT, VOCAB, LENGTH = 48, 260, 12
T, ALPHA = 2.0, 0.85
torch.manual_seed(SEED)
rng = torch.Generator().manual_seed(SEED)
keywords = torch.randperm(VOCAB, generator=rng)[: N_INTENT * 5].view(N_INTENT, 5)


def utterances(n):
    intent = torch.randint(0, N_INTENT, (n,), generator=rng)
    words = torch.randint(0, VOCAB, (n, LENGTH), generator=rng)
    pick = torch.rand(n, 5, generator=rng).argsort(1)[:, :3]
    words[:, :3] = keywords[intent].gather(1, pick)
    order = torch.rand(n, LENGTH, generator=rng).argsort(1)
    return words.gather(1, order), intent


def crowd(intent):
    other = (intent * 7 + 3) % N_INTENT
    return torch.where(torch.rand(intent.shape, generator=rng) < 0.62, other, intent)


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, 128, mode="sum")
        self.out = nn.Linear(128, N_INTENT)

    def forward(self, x):
        return self.out(torch.relu(self.bag(x)))


class Student(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False)
        self.out = nn.Linear(d, N_INTENT)

    def forward(self, x):
        return self.out(self.enc(self.emb(x)).mean(1))


def fit_teacher(model, steps=150):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for i in range(steps):
        x, y = utterances(128)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("teacher loss", round(loss.item(), 4))
    return model.eval().requires_grad_(False)


soft_criterion = nn.KLDivLoss(reduction="mean")
hard_criterion = nn.CrossEntropyLoss()


def distill_step(student, teacher, x, y):
    s, t = student(x), teacher(x)
    soft = soft_criterion(F.log_softmax(s / T, -1), F.softmax(t / T, -1)) * T * T
    hard = hard_criterion(s, y)
    return ALPHA * soft + (1 - ALPHA) * hard, soft, hard


teacher = fit_teacher(Teacher())
student = Student()
optim = torch.optim.AdamW(student.parameters(), lr=2e-3, weight_decay=0.01)
sched = torch.optim.lr_scheduler.OneCycleLR(optim, 2e-3, total_steps=420)
for it in range(420):
    x, y = utterances(64)
    total, soft, hard = distill_step(student, teacher, x, crowd(y))
    optim.zero_grad()
    total.backward()
    optim.step()
    sched.step()
    if it % 60 == 0:
        print(f"it {it} total {total.item():.4f} soft {soft.item():.4f} hard {hard.item():.4f}")

student.eval()
with torch.no_grad():
    x, y = utterances(2000)
    print("teacher accuracy", (teacher(x).argmax(1) == y).float().mean().item())
    print("student accuracy", (student(x).argmax(1) == y).float().mean().item())
