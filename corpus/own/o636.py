import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)


class ConvBNAct(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class ConvNet(nn.Module):
    def __init__(self, width, num_classes=10, drop_rate=0.0):
        super().__init__()
        self.stem = ConvBNAct(3, width, 2)
        self.stage1 = ConvBNAct(width, 2 * width, 2)
        self.stage2 = ConvBNAct(2 * width, 2 * width)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc1 = nn.Linear(8 * width, 8 * width)
        self.drop = nn.Dropout(drop_rate)
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x):
        x = self.pool(self.stage2(self.stage1(self.stem(x)))).flatten(1)
        x = self.drop(x)
        x = self.drop(F.relu(self.fc1(x)))
        return self.fc(x)


class StudentNet(ConvNet):
    def __init__(self, width=8, num_classes=10):
        super().__init__(width, num_classes)

    def forward(self, x):
        return F.softmax(super().forward(x), dim=1)


class Distiller(nn.Module):
    def __init__(self, teacher, student, temperature=4.0, alpha=0.7, lr=2e-3):
        super().__init__()
        self.teacher = teacher
        self.student = student
        self.T = temperature
        self.alpha = alpha
        self.lr = lr
        for p in self.teacher.parameters():
            p.requires_grad = False

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def training_step(self, batch, batch_idx):
        x, y = batch
        with torch.no_grad():
            teacher_logits = self.teacher(x)
        student_logits = self.student(x)
        kd = F.kl_div(
            F.log_softmax(student_logits / self.T, dim=1),
            F.log_softmax(teacher_logits / self.T, dim=1),
            reduction="batchmean",
            log_target=True,
        ) * self.T ** 2
        ce = F.cross_entropy(student_logits, y)
        return self.alpha * kd + (1 - self.alpha) * ce

    @torch.no_grad()
    def validation_step(self, batch):
        x, y = batch
        s, t = self.student(x), self.teacher(x)
        return {
            "student_acc": (s.argmax(1) == y).float().mean().item(),
            "teacher_acc": (t.argmax(1) == y).float().mean().item(),
            "agree": (s.argmax(1) == t.argmax(1)).float().mean().item(),
        }

    def configure_optimizers(self):
        return torch.optim.Adam(self.student.parameters(), lr=self.lr)


class Trainer:
    def __init__(self, max_epochs, log_every=20):
        self.max_epochs = max_epochs
        self.log_every = log_every

    def fit(self, module, train_loader, val_batch):
        optimizer = module.configure_optimizers()
        step = 0
        for epoch in range(self.max_epochs):
            module.train()
            for batch_idx, batch in enumerate(train_loader):
                loss = module.training_step(batch, batch_idx)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step % self.log_every == 0:
                    print(f"step {step} kd_loss {loss.item():.4f}")
                step += 1
            module.eval()
            metrics = module.validation_step(val_batch)
            print(f"epoch {epoch} " + " ".join(f"{k} {v:.3f}" for k, v in metrics.items()))


protos = F.interpolate(torch.randn(10, 3, 5, 5), size=16, mode="bilinear")


def make_split(n):
    y = torch.randint(0, 10, (n,))
    x = protos[y].clone()
    for i in range(n):
        dy, dx = torch.randint(-3, 4, (2,)).tolist()
        x[i] = torch.roll(x[i], (dy, dx), dims=(1, 2))
    return x + 1.0 * torch.randn_like(x), y


xtr, ytr = make_split(2400)
xva, yva = make_split(600)
teacher = ConvNet(24, drop_rate=0.3)
opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
teacher.train()
for epoch in range(3):
    for i, (x, y) in enumerate(DataLoader(TensorDataset(xtr, ytr), batch_size=64, shuffle=True)):
        loss = F.cross_entropy(teacher(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"teacher epoch {epoch} loss {loss.item():.4f}")
teacher.eval()
with torch.no_grad():
    print(f"teacher acc {(teacher(xva).argmax(1) == yva).float().mean().item():.3f}")

distiller = Distiller(teacher, StudentNet())
loader = DataLoader(TensorDataset(xtr, ytr), batch_size=32, shuffle=True, drop_last=True)
Trainer(max_epochs=3).fit(distiller, loader, (xva, yva))
