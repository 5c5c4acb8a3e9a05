import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class MemoryBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_q, self.ln_kv, self.ln_f = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, context):
        kv = self.ln_kv(context)
        x = x + self.mix(self.ln_q(x), kv, kv, need_weights=False)[0]
        return x + self.ff(self.ln_f(x))


class SegmentModel(nn.Module):
    def __init__(self, vocab, n_out, d=48, heads=4, slots=4, seg=8):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(seg, d) * 0.1)
        self.start = nn.Parameter(torch.randn(slots, d) * 0.5)
        self.write = MemoryBlock(d, heads)
        self.read = MemoryBlock(d, heads)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, n_out)

    def forward(self, segment, memory=None):
        if memory is None:
            memory = self.start.expand(segment.size(0), -1, -1)
        x = self.tok(segment) + self.pos[:segment.size(1)]
        x = self.read(x, torch.cat([memory, x], 1))
        logits = self.out(self.norm(x[:, -1]))
        memory = self.write(memory, torch.cat([memory, x], 1))
        return logits, memory


class Task:
    def __init__(self, noise=20, keys=8, seg=8, segments=3):
        self.noise, self.keys, self.seg, self.segments = noise, keys, seg, segments
        self.vocab = noise + keys + 1

    def draw(self, n):
        x = torch.randint(self.noise, (n, self.segments, self.seg))
        secret = torch.randint(self.keys, (n,))
        at = torch.randint(self.seg, (n,))
        x[torch.arange(n), 0, at] = self.noise + secret
        x[:, -1, -1] = self.vocab - 1
        return x, secret


def truncate(state):
    return state.detach()


def main(steps=220):
    torch.manual_seed(19)
    task = Task()
    model = SegmentModel(task.vocab, task.keys)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        x, y = task.draw(64)
        memory = None
        for s in range(task.segments):
            logits, memory = model(x[:, s], memory)
            memory = truncate(memory)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"update {step}: loss {loss.item():.4f} accuracy {acc:.3f}")


main()
