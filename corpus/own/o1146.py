import copy
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
VOC, QL, PL, D = 120, 5, 10, 64
SYN = torch.randperm(VOC)


def draw(n):
    p = torch.randint(VOC, (n, PL))
    keep = torch.rand(n, PL).argsort(1)[:, :QL]
    q = SYN[p.gather(1, keep)]
    return q, p


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(2 * VOC, D)
        self.cls = nn.Parameter(torch.randn(1, 1, D) * 0.02)
        layer = nn.TransformerEncoderLayer(D, 4, 2 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(D, D, bias=False)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.tok(x)], 1)
        h = self.enc(h)
        return F.normalize(self.proj(h.mean(1)), dim=-1)


online = Tower()
teacher = copy.deepcopy(online).requires_grad_(False)
BANK = 512
bank_q, bank_p = torch.empty(0, D), torch.empty(0, D)
log_temp = nn.Parameter(torch.tensor(math.log(1 / 0.1)))
opt = torch.optim.AdamW([{"params": online.parameters(), "weight_decay": 1e-3},
                         {"params": [log_temp], "weight_decay": 0.0, "lr": 1e-3}], lr=2e-3)
STEPS = 350
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS, eta_min=1e-4)


@torch.no_grad()
def momentum_update(m):
    for a, b in zip(teacher.parameters(), online.parameters()):
        a.lerp_(b, 1 - m)


def recall(n=300):
    g = torch.random.get_rng_state()
    torch.manual_seed(1234)
    q, p = draw(n)
    torch.random.set_rng_state(g)
    with torch.no_grad():
        sim = online(q + VOC) @ online(p).T
    return (sim.argmax(1) == torch.arange(n)).float().mean().item()


for step in range(1, STEPS + 1):
    q, p = draw(64)
    zq = online(q + VOC)
    zp = online(p)
    with torch.no_grad():
        momentum_update(min(0.95, 1 - 1 / (step + 1)))
        kq, kp = teacher(q + VOC), teacher(p)
    temp = log_temp.clamp(max=math.log(50)).exp()
    target = torch.arange(len(q))
    logits = zq @ torch.cat([kp, bank_p]).T * temp
    back = zp @ torch.cat([kq, bank_q]).T * temp
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(back, target)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    bank_p, bank_q = torch.cat([kp, bank_p])[:BANK], torch.cat([kq, bank_q])[:BANK]
    if step % 25 == 0 or step <= 10:
        print(f"{step:4d} loss {loss.item():.4f} negatives {logits.size(1) - 1} temp {temp.item():.1f}", flush=True)
    if step % 175 == 0:
        print(f"     recall@1 {recall():.3f}", flush=True)
