import math
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)
random.seed(4)
K, CARD, T = 4, 16, 32
PAD = CARD
SCALES = [[0, 2, 4, 5, 7, 9, 11, 12], [0, 2, 3, 5, 7, 8, 10, 12], [0, 3, 5, 6, 7, 10, 12, 15]]


def compose():
    scale, motif = random.choice(SCALES), [random.randrange(8) for _ in range(8)]
    codes = torch.zeros(K, T, dtype=torch.long)
    for t in range(T):
        bar, beat = divmod(t, 8)
        note = scale[(motif[beat] + bar) % 8]
        timbre = (note * 3 + beat) % CARD
        codes[0, t], codes[1, t] = note, timbre
        codes[2, t] = (note + timbre) % CARD
        codes[3, t] = random.randrange(CARD) if random.random() < 0.1 else (timbre * 5 + 1) % CARD
    return codes


def delay(codes):
    b = codes.size(0)
    out = torch.full((b, K, T + K - 1), PAD)
    for k in range(K):
        out[:, k, k:k + T] = codes[:, k]
    return out


class MusicLM(nn.Module):
    def __init__(self, d=80, heads=4, layers=3):
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(CARD + 1, d) for _ in range(K))
        self.pos = nn.Embedding(T + K, d)
        self.bos = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        enc = nn.TransformerEncoderLayer(d, heads, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True)
        self.core = nn.TransformerEncoder(enc, layers, nn.LayerNorm(d), enable_nested_tensor=False)
        self.heads = nn.ModuleList(nn.Linear(d, CARD) for _ in range(K))

    def forward(self, seq):
        x = sum(e(seq[:, k, :-1]) for k, e in enumerate(self.emb))
        x = torch.cat([self.bos.expand(len(x), -1, -1), x], 1)
        x = x + self.pos(torch.arange(x.size(1)))
        causal = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        x = self.core(x, mask=causal, is_causal=True)
        return torch.stack([h(x) for h in self.heads], 1)


def codebook_losses(logits, seq):
    losses = []
    for k in range(K):
        losses.append(F.cross_entropy(logits[:, k].transpose(1, 2), seq[:, k], ignore_index=PAD))
    return torch.stack(losses)


bank = torch.stack([compose() for _ in range(1200)])
held = delay(torch.stack([compose() for _ in range(64)]))
net = MusicLM()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.05)
steps = 320
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min((s + 1) / 30, 0.5 * (1 + math.cos(math.pi * s / steps))))
for s in range(steps):
    seq = delay(bank[torch.randint(0, len(bank), (16,))])
    per = codebook_losses(net(seq), seq)
    opt.zero_grad()
    per.mean().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    if s % 40 == 0 or s == steps - 1:
        net.eval()
        with torch.no_grad():
            v = codebook_losses(net(held), held)
        net.train()
        print(f"step {s:3d} loss {per.mean().item():.4f} per-codebook {[round(x, 3) for x in per.tolist()]} "
              f"held-out {v.mean().item():.4f}")
