import random
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 10, 11, 12
VOC = 13
MAXLEN = 8


def make_batch(lengths):
    src = torch.full((len(lengths), MAXLEN), PAD)
    tgt = torch.full((len(lengths), MAXLEN + 2), PAD)
    for i, n in enumerate(lengths):
        s = [random.randrange(10) for _ in range(n)]
        src[i, :n] = torch.tensor(s)
        tgt[i, :n + 2] = torch.tensor([BOS] + sorted(s) + [EOS])
    return src, tgt


class Seq2Seq(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(VOC, d, padding_idx=PAD)
        self.enc = nn.GRU(d, d // 2, batch_first=True, bidirectional=True)
        self.dec = nn.GRU(d, d, batch_first=True)
        self.key = nn.Linear(d, d, bias=False)
        self.out = nn.Sequential(nn.Linear(2 * d, d), nn.Tanh(), nn.Linear(d, VOC))

    def encode(self, src):
        pad = src == PAD
        packed = nn.utils.rnn.pack_padded_sequence(self.emb(src), (~pad).sum(1), batch_first=True, enforce_sorted=False)
        mem, h = self.enc(packed)
        mem, _ = nn.utils.rnn.pad_packed_sequence(mem, batch_first=True, total_length=src.size(1))
        return mem, pad, torch.cat([h[0], h[1]], -1)[None]

    def decode(self, mem, pad, h, inp):
        o, h = self.dec(self.emb(inp), h)
        att = (o @ self.key(mem).transpose(1, 2)) / o.size(-1) ** 0.5
        att = att.masked_fill(pad[:, None], float("-inf")).softmax(-1)
        return self.out(torch.cat([o, att @ mem], -1)), h

    def forward(self, src, inp):
        return self.decode(*self.encode(src), inp)[0]


@torch.no_grad()
def exact_match(model, n=200):
    src, tgt = make_batch([random.randint(2, MAXLEN) for _ in range(n)])
    mem, pad, h = model.encode(src)
    tok = torch.full((n, 1), BOS)
    done, ok = torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)
    for t in range(1, MAXLEN + 2):
        lo, h = model.decode(mem, pad, h, tok)
        tok = lo[:, -1:].argmax(-1)
        ok &= done | (tok[:, 0] == tgt[:, t])
        done |= tgt[:, t] == EOS
    return ok.float().mean().item()


def main():
    random.seed(40)
    torch.manual_seed(40)
    model = Seq2Seq()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    stage1, stage2, B = 120, 180, 48
    for step in range(stage1 + stage2):
        if step < stage1:
            n = 2 + step * (MAXLEN - 1) // stage1
            lengths = [n] * B
        else:
            lengths = [random.randint(2, MAXLEN) for _ in range(B)]
        if step == stage1:
            print("--- stage 2: mixed lengths")
        src, tgt = make_batch(lengths)
        logits = model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOC), tgt[:, 1:].reshape(-1), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 20 == 0 or step == stage1 + stage2 - 1:
            print(f"step {step} len {min(lengths)}..{max(lengths)} loss {loss.item():.4f} exact match {exact_match(model):.3f}")


if __name__ == "__main__":
    main()
