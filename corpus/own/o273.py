import torch
import torch.nn as nn

torch.manual_seed(101)
SRC, TGT, LEN = 18, 18, 8
BOS = TGT


class Seq2Seq(nn.Module):
    def __init__(self, d=64, layers=6):
        super().__init__()
        self.src = nn.Embedding(SRC, d)
        self.tgt = nn.Embedding(TGT + 1, d)
        self.pos = nn.Parameter(torch.randn(LEN, d) * 0.3)
        self.core = nn.Transformer(d, 4, layers, layers, 2 * d, dropout=0.0, batch_first=True)
        self.gen = nn.Linear(d, TGT)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, s, t):
        mask = nn.Transformer.generate_square_subsequent_mask(t.size(1))
        h = self.core(self.src(s) * 8 + self.pos, self.tgt(t) * 8 + self.pos, tgt_mask=mask, tgt_is_causal=True)
        return self.gen(h)


def translate(s, table):
    return table[s].flip(1)


table = torch.randperm(TGT)
net = Seq2Seq()
PEAK, TOTAL, HOLD = 3e-3, 120, 40
opt = torch.optim.Adam(net.parameters(), lr=PEAK, betas=(0.9, 0.98), eps=1e-9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (TOTAL - i) / (TOTAL - HOLD)))
loss_fn = nn.CrossEntropyLoss()
for i in range(TOTAL):
    s = torch.randint(SRC, (24, LEN))
    y = translate(s, table)
    t = torch.cat([torch.full((24, 1), BOS), y[:, :-1]], 1)
    out = net(s, t)
    loss = loss_fn(out.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if i % 12 == 0 or i == TOTAL - 1:
        print(f"update {i} loss {loss.item():.4f} lr {opt.param_groups[0]['lr']:.2e}")
