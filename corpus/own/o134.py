import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(250)

LEN, CH, D, CODES = 16, 6, 48, 64
basis = torch.randn(20, 4, CH)


def clips(n):
    pick = torch.randint(0, 20, (n, LEN // 4))
    return basis[pick].reshape(n, LEN, CH) + 0.05 * torch.randn(n, LEN, CH)


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Parameter(torch.randn(CODES, D) * 0.5)

    def forward(self, z):
        with torch.no_grad():
            idx = torch.cdist(z.reshape(-1, D), self.book).argmin(-1).view(z.shape[:-1])
        q = self.book[idx]
        commit = 0.25 * F.mse_loss(z, q.detach()) + F.mse_loss(q, z.detach())
        return z + (q - z).detach(), commit, idx


def body(n):
    layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, n, norm=nn.LayerNorm(D), enable_nested_tensor=False)


class VQAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv1d(CH, D, 4, 4)
        self.enc, self.dec = body(1), body(1)
        self.vq = Quantizer()
        self.up = nn.ConvTranspose1d(D, CH, 4, 4)

    def forward(self, x):
        z = self.enc(self.down(x.transpose(1, 2)).transpose(1, 2))
        q, commit, idx = self.vq(z)
        y = self.up(self.dec(q).transpose(1, 2)).transpose(1, 2)
        return F.mse_loss(y, x), commit, idx


model = VQAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(200):
    rec, commit, idx = model(clips(32))
    loss = rec + commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 199:
        print(f"step {step} loss {loss.item():.4f} rec {rec.item():.4f} codes {idx.unique().numel()}")
