"""Lightning's demo Transformer, as its own example trains it, on a small made-up text."""

import torch
import torch.nn.functional as F
from lightning.pytorch.demos import Transformer

torch.manual_seed(0)
V, T = 32, 16  # vocabulary, length
text = torch.randint(1, 5, (20000,)).cumsum(0) % V
model = Transformer(vocab_size=V, ninp=64, nhid=64, dropout=0.0)


def moved(changed):
    """How far the scores at place 7 move when one token that they must not know is changed."""
    inputs, target = text[None, :T], text[None, 1 : T + 1]
    before = model(inputs, target).view(T, V)
    inputs, target = inputs.clone(), target.clone()
    (inputs if changed == "input" else target)[0, 8 if changed == "input" else 7] += 1
    return (model(inputs % V, target % V).view(T, V) - before)[7].abs().max().item()


with torch.no_grad():
    print("the target itself, in the decoder's input:", moved("target"))
    print("the same token, in the encoder's input:", moved("input"))
    codes = model.pos_encoder(torch.zeros(1, T, 64))
    difference = (codes - codes[:, :1]).abs().max().item()
    print("largest difference between the codes of two places:", difference)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    ids = text[torch.randint(len(text) - T, (20, 1)) + torch.arange(T + 1)]
    inputs, target = ids[:, :-1], ids[:, 1:]
    loss = F.nll_loss(model(inputs, target), target.reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        print(step, loss.item())
