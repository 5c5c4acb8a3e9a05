import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

P = 16
table = torch.tensor([(a, P, b, P + 1) for a, b in itertools.product(range(P), range(P))])
answers = (table[:, 0] + table[:, 2]) % P


class Calculator(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.tok = nn.Embedding(P + 2, d)
        self.pos = nn.Parameter(torch.randn(4, d) * 0.3)
        self.layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, P, bias=False)

    def forward(self, x):
        h = self.layer(self.tok(x) + self.pos)
        return self.head(self.norm(h[:, -1]))


model = Calculator()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.5)
for step in range(200):
    logits = model(table)
    loss = F.cross_entropy(logits, answers)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 199:
        acc = (logits.argmax(-1) == answers).float().mean().item()
        print(f"step {step} loss {loss.item():.4f} table correct {acc:.3f}")
