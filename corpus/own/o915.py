import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(33)
INTENTS, VOCAB, LEN = 40, 200, 10
keywords = torch.randint(40, VOCAB, (INTENTS, 4))


def utterances(n):
    y = torch.randint(0, INTENTS, (n,))
    x = torch.randint(0, VOCAB, (n, LEN))
    slots = torch.rand(n, LEN).argsort(1)[:, :3]
    picks = torch.rand(n, 4).argsort(1)[:, :3]
    x.scatter_(1, slots, keywords[y].gather(1, picks))
    return x, y


class IntentModel(nn.Module):
    def __init__(self, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(LEN + 1, dim))
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, INTENTS)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.emb(x)], 1) + self.pos
        return self.fc(self.norm(self.enc(h)[:, 0]))


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return acc


def distillation_loss(student_logits, teacher_logits, labels, T=4.0, alpha=0.9):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=-1),
                    F.softmax(teacher_logits / T, dim=-1), reduction="batchmean") * T * T
    hard = F.cross_entropy(student_logits, labels)
    return alpha * soft + (1 - alpha) * hard, soft, hard


def batches(n, size):
    perm = torch.randperm(n)
    for i in range(0, n - size + 1, size):
        yield perm[i:i + size]


x_full, y_full = utterances(5000)
x_small, y_small = utterances(1600)
flip = torch.rand(len(y_small)) < 0.4
y_crowd = torch.where(flip, torch.randint(0, INTENTS, y_small.shape), y_small)
x_test, y_test = utterances(1000)

teacher = IntentModel(64, 2)
opt = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
for epoch in range(3):
    for idx in batches(len(x_full), 64):
        loss = F.cross_entropy(teacher(x_full[idx]), y_full[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher epoch {epoch} loss {loss.item():.4f} test acc {accuracy(teacher, x_test, y_test):.4f}")

teacher.eval()
with torch.no_grad():
    teacher_logits = teacher(x_small)

student = IntentModel(48, 1)
opt = torch.optim.AdamW(student.parameters(), lr=3e-3)
for epoch in range(20):
    for idx in batches(len(x_small), 50):
        loss, soft, hard = distillation_loss(student(x_small[idx]), teacher_logits[idx], y_crowd[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        print(f"student epoch {epoch} loss {loss.item():.4f} kd {soft.item():.4f} ce {hard.item():.4f} "
              f"test acc {accuracy(student, x_test, y_test):.4f}")
