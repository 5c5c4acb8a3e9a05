import math

import torch
from torch import nn
from pydoc_data.topics import topics

torch.manual_seed(1)

BATCH, BPTT, EMB, HID, LAYERS = 20, 24, 48, 128, 1
STEPS = 400

text = "\n\n".join(dict.fromkeys(p for k in sorted(topics) for p in topics[k].split("\n\n"))).lower()
alphabet = sorted(set(text))
lookup = {c: i for i, c in enumerate(alphabet)}
stream = torch.tensor([lookup[c] for c in text])
n_val = len(stream) // 20
train_stream, val_stream = stream[:-n_val], stream[-n_val:]


def batchify(s, n):
    length = len(s) // n
    return s[: length * n].view(n, length).t().contiguous()


train, val = batchify(train_stream, BATCH), batchify(val_stream, 10)


class CharLSTM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, EMB)
        self.rnn = nn.LSTM(EMB, HID, LAYERS)
        self.out = nn.Linear(HID, vocab)
        for name, p in self.rnn.named_parameters():
            if name.startswith("bias_ih"):
                nn.init.zeros_(p)
                with torch.no_grad():
                    p[HID: 2 * HID].fill_(1.0)
            elif name.startswith("bias_hh"):
                nn.init.zeros_(p)

    def forward(self, x, state):
        h, state = self.rnn(self.emb(x), state)
        return self.out(h), state

    def zero_state(self, n):
        return tuple(torch.zeros(LAYERS, n, HID) for _ in range(2))


model = CharLSTM(len(alphabet))
optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=5e-4)
loss_fn = nn.CrossEntropyLoss()


@torch.no_grad()
def evaluate(max_chunks=12):
    model.eval()
    state, total, count = model.zero_state(val.size(1)), 0.0, 0
    for i in range(0, min(val.size(0) - 1, max_chunks * 64), 64):
        n = min(64, val.size(0) - 1 - i)
        out, state = model(val[i: i + n], state)
        y = val[i + 1: i + 1 + n]
        total += loss_fn(out.flatten(0, 1), y.flatten()).item() * y.numel()
        count += y.numel()
    model.train()
    return total / count


step, epoch = 0, 0
model.train()
while step < STEPS:
    state = model.zero_state(BATCH)
    for i in range(0, train.size(0) - 1 - BPTT, BPTT):
        x, y = train[i: i + BPTT], train[i + 1: i + 1 + BPTT]
        state = tuple(s.detach() for s in state)
        out, state = model(x, state)
        loss = loss_fn(out.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        if step % 50 == 0 or step == STEPS - 1:
            v = evaluate()
            print(f"epoch {epoch} step {step:4d} loss {loss.item():.4f} | val {v:.4f} ({v / math.log(2):.2f} bits/char)")
        step += 1
        if step == STEPS:
            break
    epoch += 1
