import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(77)
VOCAB, LEN, CLASSES = 30, 16, 5
TEMP, ALPHA = 3.0, 0.8
BATCH = 32


def make_data(n, g):
    bias = torch.rand(n, CLASSES, generator=g).pow(2) + 0.15
    group = torch.multinomial(bias, LEN, replacement=True, generator=g)
    x = group * 6 + torch.randint(6, (n, LEN), generator=g)
    y = F.one_hot(group, CLASSES).sum(1).argmax(1)
    return x, y


class Classifier(nn.Module):
    def __init__(self, d, heads, layers, dropout):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        layer = nn.TransformerEncoderLayer(d, heads, 2 * d, dropout=dropout, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.fc = nn.Linear(d, CLASSES)

    def forward(self, x):
        return self.fc(self.enc(self.emb(x)).mean(1))


@torch.no_grad()
def accuracy(model, x, y):
    was = model.training
    model.eval()
    acc = (model(x).argmax(1) == y).float().mean().item()
    model.train(was)
    return acc


def kd_loss(student_logits, teacher_logits, labels):
    soft = F.kl_div(F.log_softmax(student_logits / TEMP, dim=-1),
                    F.log_softmax(teacher_logits / TEMP, dim=-1),
                    reduction="batchmean", log_target=True) * TEMP ** 2
    hard = F.cross_entropy(student_logits, labels)
    return ALPHA * soft + (1 - ALPHA) * hard, soft, hard


def minibatches(n, steps):
    done = 0
    while done < steps:
        for idx in torch.randperm(n).split(BATCH):
            if done == steps:
                return
            if len(idx) == BATCH:
                done += 1
                yield done, idx


g = torch.Generator().manual_seed(1)
x_train, y_train = make_data(6000, g)
x_test, y_test = make_data(400, g)

teacher = Classifier(d=64, heads=4, layers=2, dropout=0.1)
opt = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
T_STEPS, S_STEPS = 220, 220
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_STEPS)
teacher.train()
for step, idx in minibatches(len(x_train), T_STEPS):
    loss = F.cross_entropy(teacher(x_train[idx]), y_train[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step == 1 or step % 55 == 0:
        print(f"teacher step {step:3d} loss {loss.item():.4f} test acc {accuracy(teacher, x_test, y_test):.3f}")

teacher.eval()
for p in teacher.parameters():
    p.requires_grad_(False)

student = Classifier(d=24, heads=2, layers=1, dropout=0.0)
count = lambda m: sum(p.numel() for p in m.parameters())
print(f"parameters: teacher {count(teacher)}, student {count(student)}")
opt = torch.optim.AdamW(student.parameters(), lr=5e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, S_STEPS)
for step, idx in minibatches(len(x_train), S_STEPS):
    xb, yb = x_train[idx], y_train[idx]
    with torch.no_grad():
        t_logits = teacher(xb)
    loss, soft, hard = kd_loss(student(xb), t_logits, yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step == 1 or step % 44 == 0:
        print(f"student step {step:3d} loss {loss.item():.4f} (soft {soft.item():.4f} hard {hard.item():.4f}) "
              f"test acc {accuracy(student, x_test, y_test):.3f}")
