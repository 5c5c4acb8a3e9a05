import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from pydoc_data.topics import topics


def build_vocab(s):
    alphabet = sorted(set(s))
    return alphabet, {c: i for i, c in enumerate(alphabet)}


class ConvMixer(nn.Module):
    def __init__(self, d, dilation):
        super().__init__()
        self.reach = 2 * dilation
        self.conv = nn.Conv1d(d, 2 * d, 3, dilation=dilation)
        self.mix = nn.Conv1d(d, d, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.reach, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(a) * torch.sigmoid(b))


class WaveLM(nn.Module):
    def __init__(self, vocab, d=64, dilations=(1, 2, 4, 8)):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.stack = nn.Sequential(*(ConvMixer(d, k) for k in dilations))
        self.post = nn.Conv1d(d, d, 1)
        self.logits = nn.Conv1d(d, vocab, 1)

    def forward(self, ids):
        h = self.stack(self.embed(ids).transpose(1, 2))
        return self.logits(F.relu(self.post(h)))


def normalise(module):
    if isinstance(module, nn.Conv1d):
        weight_norm(module)


def main(steps=200, ctx=64, bs=16):
    torch.manual_seed(70)
    text = "".join(topics.values())
    alphabet, table = build_vocab(text)
    stream = torch.tensor([table[c] for c in text])
    net = WaveLM(len(alphabet))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    net.apply(normalise)
    print(sum(p.numel() for p in net.parameters()), "parameters")
    for step in range(steps):
        at = torch.randint(len(stream) - ctx - 1, (bs,))
        rows = torch.stack([stream[i:i + ctx + 1] for i in at.tolist()])
        loss = F.cross_entropy(net(rows[:, :-1]), rows[:, 1:])
        net.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step:>4} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.1e}")


if __name__ == "__main__":
    main()
