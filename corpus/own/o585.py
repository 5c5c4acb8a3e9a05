import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
VOCAB, CTX, WIDTH, DEPTH, HEADS = 24, 24, 48, 8, 4

teacher_logits = 2.5 * torch.randn(VOCAB, VOCAB, VOCAB)
teacher_probs = teacher_logits.softmax(-1)
teacher_probs[: VOCAB // 2] = teacher_probs[0]


def sample(n):
    s = torch.randint(VOCAB, (n, 2))
    soft = []
    for _ in range(CTX - 1):
        p = teacher_probs[s[:, -2], s[:, -1]]
        soft.append(p)
        s = torch.cat([s, torch.multinomial(p, 1)], 1)
    return s[:, :-1], torch.stack(soft, 1)


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.att = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.register_buffer("mask", torch.ones(CTX, CTX, dtype=torch.bool).triu(1))

    def forward(self, x):
        h = self.ln(x)
        n = x.shape[1]
        return self.att(h, h, h, attn_mask=self.mask[:n, :n], need_weights=False)[0]


def feed():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))


def bypass(module, args, output):
    carried = args[0]
    if carried.shape == output.shape:
        output = torch.add(carried, output)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Embedding(CTX, WIDTH)
        self.trunk = nn.Sequential()
        for i in range(DEPTH):
            for name, layer in (("mix", Mix()), ("feed", feed())):
                layer.register_forward_hook(bypass)
                self.trunk.add_module(f"{name}{i}", layer)
        self.readout = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB))

    def forward(self, s):
        x = self.embed(s) + self.place(torch.arange(s.shape[1]))
        return self.readout(self.trunk(x))


def distil_loss(student_out, soft, tau=1.0):
    logq = F.log_softmax(student_out[:, 1:] / tau, -1)
    return F.kl_div(logq.flatten(0, 1), soft.flatten(0, 1), reduction="batchmean") * tau ** 2


student = Student()
opt = torch.optim.AdamW(student.parameters(), lr=1.5e-3, betas=(0.9, 0.98), weight_decay=0.01)
STEPS = 250
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min((s + 1) / 20, 1.0) * (1 - 0.9 * s / STEPS))

history = []
for step in range(STEPS):
    s, soft = sample(32)
    loss = distil_loss(student(s), soft)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    opt.step()
    sched.step()
    history.append(loss.item())
    if (step + 1) % 20 == 0:
        print(f"[{step + 1:03d}/{STEPS}] KL to teacher {sum(history[-20:]) / 20:.4f}", flush=True)

student.eval()
with torch.no_grad():
    s, soft = sample(256)
    print("held-out KL", round(distil_loss(student(s), soft).item(), 4))
