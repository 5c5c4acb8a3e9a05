import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(66)

D, SEG, SEGS, VOCAB = 40, 4, 20, 24


def episodes(n):
    keys = torch.randint(0, 8, (n,))
    x = torch.randint(8, VOCAB, (n, SEGS, SEG))
    x[:, 0, 1] = keys
    return x, keys


class MemoryCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(D, 4, batch_first=True)
        self.norm = nn.LayerNorm(D)
        self.read = nn.Linear(D, D)
        self.carry = nn.Linear(D, D, bias=False)
        with torch.no_grad():
            self.carry.weight.copy_(torch.eye(D) + 0.01 * torch.randn(D, D))

    def forward(self, seg, mem):
        z = self.norm(seg)
        ctx, _ = self.attn(z, z, z, need_weights=False)
        return self.carry(mem) + torch.tanh(self.read((seg + ctx).mean(1)))


class BlockRecurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.pos = nn.Parameter(torch.randn(SEG, D) * 0.1)
        self.cell = MemoryCell()
        self.head = nn.Linear(D, 8)

    def forward(self, x):
        mem = x.new_zeros(x.size(0), D, dtype=torch.float)
        for s in range(x.size(1)):
            mem = self.cell(self.emb(x[:, s]) + self.pos, mem)
        return self.head(mem)


model = BlockRecurrent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
for step in range(140):
    x, y = episodes(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == 139:
        print(f"step {step} loss {loss.item():.4f}")
