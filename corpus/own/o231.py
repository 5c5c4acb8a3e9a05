from pydoc_data.topics import topics

import torch
import torch.nn as nn

torch.manual_seed(8)
corpus = " ".join(topics[k] for k in sorted(topics)).lower()
chars = sorted(set(corpus))
lookup = {c: i for i, c in enumerate(chars)}
stream = torch.tensor([lookup[c] for c in corpus])

BATCH, BPTT, HIDDEN, LR = 16, 80, 96, 0.02
columns = stream[: len(stream) // BATCH * BATCH].view(BATCH, -1).t().contiguous()


class RectifiedRNN(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.embed = nn.Embedding(vocab, 64)
        self.rnn = nn.RNN(64, HIDDEN, num_layers=1, nonlinearity="relu")
        self.decode = nn.Linear(HIDDEN, vocab)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.zeros_(self.rnn.bias_hh_l0)
        nn.init.zeros_(self.rnn.bias_ih_l0)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.01)
        nn.init.normal_(self.decode.weight, std=0.02)

    def forward(self, x, state):
        h, state = self.rnn(self.embed(x), state)
        return self.decode(h), state


model = RectifiedRNN(len(chars))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
state = torch.zeros(1, BATCH, HIDDEN)
running = 0.0
for step in range(240):
    at = step * BPTT % (columns.size(0) - BPTT - 1)
    x, y = columns[at:at + BPTT], columns[at + 1:at + BPTT + 1]
    logits, _ = model(x, state)
    loss = criterion(logits.flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.item()
    if step == 0 or (step + 1) % 20 == 0:
        n = 1 if step == 0 else (19 if step == 19 else 20)
        print(f"| batch {step + 1:4d} | loss {running / n:8.3f}")
        running = 0.0
