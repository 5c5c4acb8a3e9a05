import argparse
from pydoc_data import topics
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=32)
parser.add_argument("--nhid", type=int, default=96)
parser.add_argument("--bptt", type=int, default=32)
parser.add_argument("--batch", type=int, default=24)
parser.add_argument("--lr", type=float, default=20.0)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--updates", type=int, default=240)
args = parser.parse_args()
torch.manual_seed(6)

text = topics.topics["specialnames"] + topics.topics["assignment"] + topics.topics["formatstrings"] + topics.topics["types"]
chars = sorted(set(text))
ids = torch.tensor([chars.index(c) for c in text])
held = len(ids) // 10


def columns(x, b):
    n = len(x) // b
    return x[: n * b].view(b, n).t().contiguous()


train, valid = columns(ids[:-held], args.batch), columns(ids[-held:], args.batch)


class RNNModel(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.enc = nn.Embedding(v, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid)
        self.dec = nn.Linear(args.nhid, v)
        nn.init.uniform_(self.enc.weight, -0.1, 0.1)
        nn.init.zeros_(self.dec.bias)
        nn.init.uniform_(self.dec.weight, -0.1, 0.1)

    def forward(self, x, state):
        y, state = self.rnn(self.enc(x), state)
        return self.dec(y), state


def repackage(s):
    return None if s is None else tuple(t.detach() for t in s)


model = RNNModel(len(chars))
state, at = None, 0
for update in range(args.updates):
    if at + args.bptt + 1 >= len(train):
        state, at = None, 0
    x, y = train[at:at + args.bptt], train[at + 1:at + 1 + args.bptt]
    at += args.bptt
    model.zero_grad()
    out, state = model(x, repackage(state))
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-args.lr)
    if update % 20 == 0 or update == args.updates - 1:
        print(f"| update {update:4d} | lr {args.lr:.1f} | loss {loss.item():.3f}", flush=True)
with torch.no_grad():
    n = min(len(valid) - 1, 200)
    out, _ = model(valid[:n], None)
    print(f"valid loss {F.cross_entropy(out.flatten(0, 1), valid[1:n + 1].flatten()).item():.3f}")
