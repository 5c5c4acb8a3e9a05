from dataclasses import dataclass
import torch
import torch.nn as nn

PAD, BOS, EOS, OFF = 0, 1, 2, 3


@dataclass
class Config:
    src_len: int = 7
    symbols: int = 8
    d_model: int = 64
    nhead: int = 4
    ff: int = 128
    batch: int = 64
    steps: int = 450
    lr: float = 1.5e-3
    seed: int = 21


cfg = Config()
torch.manual_seed(cfg.seed)


def make_batch(n):
    src = torch.randint(0, cfg.symbols, (n, cfg.src_len))
    rev = (src.flip(1) + 3) % cfg.symbols
    tgt = torch.cat([torch.full((n, 1), BOS), rev + OFF, torch.full((n, 1), EOS)], 1)
    return src + OFF, tgt


class Rewriter(nn.Module):
    def __init__(self, c):
        super().__init__()
        V = c.symbols + OFF
        self.src_emb, self.tgt_emb = nn.Embedding(V, c.d_model), nn.Embedding(V, c.d_model)
        self.src_pos = nn.Parameter(torch.randn(1, 32, c.d_model) * 0.1)
        self.tgt_pos = nn.Parameter(torch.randn(1, 32, c.d_model) * 0.1)
        self.core = nn.Transformer(c.d_model, c.nhead, 1, 1, c.ff, dropout=0.0,
                                   batch_first=True, norm_first=True)
        self.out = nn.Linear(c.d_model, V)

    def encode(self, src):
        return self.core.encoder(self.src_emb(src) + self.src_pos[:, :src.size(1)])

    def decode(self, mem, prev):
        L = prev.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(L)
        h = self.tgt_emb(prev) + self.tgt_pos[:, :L]
        return self.out(self.core.decoder(h, mem, tgt_mask=mask))

    @torch.no_grad()
    def generate(self, src, max_len):
        mem = self.encode(src)
        ys = torch.full((src.size(0), 1), BOS)
        for _ in range(max_len):
            nxt = self.decode(mem, ys)[:, -1].argmax(-1, keepdim=True)
            ys = torch.cat([ys, nxt], 1)
        return ys


def token_accuracy(model, n=256):
    src, tgt = make_batch(n)
    hyp = model.generate(src, tgt.size(1) - 1)
    return (hyp[:, 1:] == tgt[:, 1:]).float().mean().item()


model = Rewriter(cfg)
optim = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
warm = torch.optim.lr_scheduler.LinearLR(optim, 0.05, 1.0, total_iters=40)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

for step in range(1, cfg.steps + 1):
    src, tgt = make_batch(cfg.batch)
    labels = tgt[:, 1:]
    logits = model.decode(model.encode(src), tgt[:, :-1])
    loss = criterion(logits.reshape(-1, logits.size(-1)), labels.reshape(-1))
    optim.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    warm.step()
    if step % 25 == 0 or step == 1:
        print(f"step {step:03d}/{cfg.steps} loss={loss.item():.4f}", flush=True)

model.eval()
print(f"generation token accuracy: {token_accuracy(model):.4f}")
