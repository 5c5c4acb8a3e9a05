import copy
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(31)
STATES, SEQ = (32, 40)
TEMP = 2.0


class Source:
    def __init__(self, gen):
        self.gen = gen
        logits = torch.randn(4, STATES, STATES, generator=gen) * 2.2
        self.table = logits.softmax(-1)

    def draw(self, n):
        which = torch.randint(0, 4, (n,), generator=self.gen)
        cur = torch.randint(0, STATES, (n,), generator=self.gen)
        cols, ent = ([which, cur + 4], [])
        for _ in range(SEQ - 2):
            p = self.table[which, cur]
            ent.append(-(p * p.clamp_min(1e-12).log()).sum(-1).mean())
            cur = torch.multinomial(p, 1, generator=self.gen).squeeze(1)
            cols.append(cur + 4)
        return (torch.stack(cols, 1), torch.stack(ent).mean().item())


class Branch(nn.Module):
    def __init__(self, d, h, gated):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = (nn.LayerNorm(d), nn.LayerNorm(d))
        self.qkv, self.o = (nn.Linear(d, 3 * d), nn.Linear(d, d))
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        start = 0.0 if gated else 1.0
        self.g1 = nn.Parameter(torch.tensor(start), requires_grad=gated)
        self.g2 = nn.Parameter(torch.tensor(start), requires_grad=gated)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.g1 * self.o(a)
        return x + self.g2 * self.mlp(self.ln2(x))


class Teacher(nn.Module):
    def __init__(self, d=64, depth=2):
        super().__init__()
        self.emb = nn.Embedding(STATES + 4, d)
        self.pos = nn.Parameter(torch.randn(SEQ, d) * 0.02)
        self.blocks = nn.ModuleList((Branch(d, 4, False) for _ in range(depth)))
        self.ln = nn.LayerNorm(d)
        self.out = nn.Linear(d, STATES + 4, bias=False)

    def forward(self, ids):
        x = self.emb(ids) + self.pos[: ids.size(1)]
        for b in self.blocks:
            x = b(x)
        return self.out(self.ln(x))


class Student(nn.Module):
    def __init__(self, teacher, d=40, depth=2):
        super().__init__()
        wide = teacher.emb.embedding_dim
        self.emb, self.out = (teacher.emb, teacher.out)
        for p in (self.emb.weight, self.out.weight):
            p.requires_grad_(False)
        self.down, self.up = (nn.Linear(wide, d), nn.Linear(d, wide))
        self.pos = nn.Parameter(torch.zeros(SEQ, d))
        self.blocks = nn.ModuleList((Branch(d, 4, True) for _ in range(depth)))

    def forward(self, ids):
        x = self.down(self.emb(ids)) + self.pos[: ids.size(1)]
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False) if self.training else b(x)
        return self.out(F.layer_norm(self.up(x), (self.up.out_features,)))


def soft_loss(s, t):
    lt, ls = (F.log_softmax(t / TEMP, -1), F.log_softmax(s / TEMP, -1))
    return (lt.exp() * (lt - ls)).sum(-1).mean() * TEMP**2


gen = torch.Generator().manual_seed(2)
source = Source(gen)
teacher = Teacher()
opt = torch.optim.AdamW(teacher.parameters(), lr=0.004, weight_decay=0.01)
STEPS_A = 260
for i in range(STEPS_A):
    for g in opt.param_groups:
        g["lr"] = 0.004 * min(1, (i + 1) / 30) * (1 - i / STEPS_A)
    ids, entropy = source.draw(24)
    loss = F.cross_entropy(teacher(ids[:, :-1])[:, 1:].flatten(0, 1), ids[:, 2:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)
    opt.step()
    if i % 40 == 0 or i == STEPS_A - 1:
        print(f"teacher {i:3d} loss {loss.item():.4f} (entropy of the source {entropy:.4f})")
teacher.eval()
student = Student(teacher)
average = copy.deepcopy(student)
learn = [p for p in student.parameters() if p.requires_grad]
opt = torch.optim.RAdam(learn, lr=0.008)
STEPS_B = 260
for i in range(STEPS_B):
    for g in opt.param_groups:
        g["lr"] = 0.008 * (1 - i / STEPS_B) ** 0.5
    ids, _ = source.draw(24)
    with torch.no_grad():
        target = teacher(ids)
    loss = soft_loss(student(ids), target.detach())
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        keep = min(0.97, (i + 1) / (i + 10))
        for a, p in zip(average.parameters(), student.parameters()):
            if p.requires_grad:
                a.lerp_(p, 1 - keep)
    if i % 40 == 0 or i == STEPS_B - 1:
        print(
            f"student {i:3d} kl {loss.item():.4f} gates "
            + " ".join((f"{b.g1.item():+.2f}/{b.g2.item():+.2f}" for b in student.blocks))
        )
with torch.no_grad():
    average.eval()
    ids, entropy = source.draw(200)
    for name, net in (("teacher", teacher), ("student", average)):
        ce = F.cross_entropy(net(ids)[:, 1:-1].flatten(0, 1), ids[:, 2:].flatten()).item()
        print(f"{name}: cross-entropy {ce:.4f} on fresh data, source entropy {entropy:.4f}")
