import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(33)
SR_LEN, FRAME = 256, 16
N_FR = SR_LEN // FRAME


def tones(n):
    t = torch.arange(SR_LEN) / SR_LEN
    out = torch.zeros(n, SR_LEN)
    for seg in range(4):
        f = torch.tensor([6.0, 10.0, 16.0, 24.0])[torch.randint(0, 4, (n, 1))]
        a = 0.5 + 0.5 * torch.rand(n, 1)
        wave = a * torch.sin(2 * torch.pi * f * t) + 0.3 * a * torch.sin(4 * torch.pi * f * t)
        sl = slice(seg * 64, (seg + 1) * 64)
        out[:, sl] = wave[:, sl]
    return out + 0.02 * torch.randn(n, SR_LEN)


class EMAQuantizer(nn.Module):
    def __init__(self, size=96, dim=16, decay=0.95):
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(size, dim))
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", self.codebook.clone())

    def forward(self, z):
        flat = z.reshape(-1, z.size(-1))
        idx = torch.cdist(flat, self.codebook).argmin(1)
        q = self.codebook[idx].view_as(z)
        if self.training:
            with torch.no_grad():
                hot = F.one_hot(idx, len(self.codebook)).float()
                self.count.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.total.mul_(self.decay).add_(hot.t() @ flat, alpha=1 - self.decay)
                self.codebook.copy_(self.total / self.count.clamp(min=1e-3)[:, None])
                dead = self.count < 0.1
                if dead.any():
                    pick = flat[torch.randint(0, len(flat), (int(dead.sum()),))]
                    self.codebook[dead], self.total[dead], self.count[dead] = pick, pick, 1.0
        commit = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), commit, idx


class Codec(nn.Module):
    def __init__(self, d=64, code=16):
        super().__init__()
        mk = lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False)
        self.inp, self.out = nn.Linear(FRAME, d), nn.Linear(d, FRAME)
        self.pos = nn.Parameter(0.1 * torch.randn(2, N_FR, d))
        self.enc, self.dec = mk(), mk()
        self.down, self.up = nn.Linear(d, code), nn.Linear(code, d)
        self.vq = EMAQuantizer(dim=code)

    def forward(self, wav):
        z = self.down(self.enc(self.inp(wav.view(-1, N_FR, FRAME)) + self.pos[0]))
        q, commit, idx = self.vq(z)
        return self.out(self.dec(self.up(q) + self.pos[1])).flatten(1), commit, idx


def spectral(a, b):
    loss = 0.0
    for n in (32, 64):
        w = torch.hann_window(n)
        A, B = (torch.stft(t, n, n // 2, window=w, return_complex=True).abs() for t in (a, b))
        loss = loss + F.l1_loss(A, B)
    return loss


wav, test = tones(2000), tones(128)
codec = Codec()
opt = torch.optim.AdamW(codec.parameters(), lr=1.5e-3, weight_decay=0.0)
for s in range(340):
    x = wav[torch.randint(0, len(wav), (32,))]
    y, commit, idx = codec(x)
    rec, spec = F.mse_loss(y, x), spectral(y, x)
    loss = 5 * rec + 0.2 * spec + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(codec.parameters(), 2.0)
    opt.step()
    if s % 34 == 0 or s == 339:
        codec.eval()
        with torch.no_grad():
            ty, _, ti = codec(test)
            snr = 10 * torch.log10(test.pow(2).mean() / (ty - test).pow(2).mean())
        codec.train()
        print(f"step {s:3d} loss {loss.item():.4f} mse {rec.item():.4f} spec {spec.item():.3f} "
              f"commit {commit.item():.4f} codes used {ti.unique().numel()} test SNR {snr:.2f} dB")
