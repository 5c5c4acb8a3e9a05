import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Student(nn.Module):
    def __init__(self, d, depth, vocab=50, classes=16, n=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.randn(n, d) * 0.1)
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True),
            depth, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        return self.fc(self.enc(self.tok(x) + self.pos).mean(1))


class Distiller:
    def __init__(self, temp=2.0, lr=2e-3):
        self.teacher = Student(64, 2).eval().requires_grad_(False)
        nn.init.normal_(self.teacher.fc.weight, std=1.0)
        self.student = Student(48, 2)
        self.temp = temp
        self.opt = torch.optim.Adam(self.student.parameters(), lr=lr)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, mode="max", factor=0.3, patience=1)
        self.probe = torch.randint(0, 50, (128, 12))

    def kd(self, x):
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.temp, -1)
        return F.kl_div(F.log_softmax(self.student(x) / self.temp, -1), soft, reduction="batchmean") * self.temp ** 2

    def epoch(self, steps):
        for _ in range(steps):
            loss = self.kd(torch.randint(0, 50, (48, 12)))
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    def fit(self, epochs=20, steps=10):
        for e in range(epochs):
            tr = self.epoch(steps)
            with torch.no_grad():
                val = self.kd(self.probe).item()
            self.plateau.step(val)
            if e % 2 == 1 or e == 0:
                print(f"epoch {e:2d} train {tr:.4f} val loss {val:.4f}")


torch.manual_seed(42)
Distiller().fit()
