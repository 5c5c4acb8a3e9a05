import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1234)
PITCHES, BARS, STEPS = 30, 4, 8
SEQ = BARS * STEPS
SCALE = torch.tensor([0, 2, 4, 5, 7, 9, 11, 12, 14, 16])
PROGRESSION = torch.tensor([[0, 2, 4], [3, 5, 7], [4, 6, 8], [2, 4, 6]])


def compose(n, g):
    tunes = torch.zeros(n, SEQ, dtype=torch.long)
    for i in range(n):
        key = int(torch.randint(0, 6, (1,), generator=g))
        motif = torch.randint(0, 3, (STEPS,), generator=g)
        for bar in range(BARS):
            chord = PROGRESSION[bar]
            for s in range(STEPS):
                degree = chord[motif[s]]
                if torch.rand(1, generator=g) < 0.04:
                    degree = torch.randint(0, 10, (1,), generator=g)[0]
                tunes[i, bar * STEPS + s] = SCALE[degree] + key
    return tunes


class MelodyTransformer(nn.Module):
    def __init__(self, d=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(PITCHES, d)
        self.pos = nn.Embedding(SEQ, d)
        layer = nn.TransformerEncoderLayer(d, heads, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.out = nn.Linear(d, PITCHES)
        self.register_buffer("mask", torch.triu(torch.ones(SEQ, SEQ), diagonal=1))

    def forward(self, x):
        t = x.size(1)
        h = self.tok(x) + self.pos(torch.arange(t))
        return self.out(self.body(h, mask=self.mask[:t, :t]))


@torch.no_grad()
def continue_tune(model, prompt, length):
    seq = prompt
    while seq.size(1) < length:
        logits = model(seq)[:, -1]
        seq = torch.cat([seq, logits.argmax(-1, keepdim=True)], 1)
    return seq


g = torch.Generator().manual_seed(8)
train, valid = compose(1200, g), compose(120, g)
model = MelodyTransformer()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
total = 350
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=total, pct_start=0.1)

for it in range(total):
    batch = train[torch.randint(0, len(train), (32,), generator=g)]
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, PITCHES), batch[:, 1:].reshape(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if (it + 1) % 50 == 0:
        print(f"iter {it + 1} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    lv = model(valid[:, :-1])
    vl = F.cross_entropy(lv.reshape(-1, PITCHES), valid[:, 1:].reshape(-1)).item()
half = 2 * STEPS
cont = continue_tune(model, valid[:, :half], SEQ)
match = (cont[:, half:] == valid[:, half:]).float().mean().item()
print(f"validation loss {vl:.4f}")
print(f"continuation accuracy over the last two bars {match:.4f}")
