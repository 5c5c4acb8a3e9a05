import io

import torch
import torch.nn as nn
import torch.nn.functional as F
from pydoc_data.topics import topics
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.optim.swa_utils import AveragedModel

SEED, LANES, BPTT, CYCLE, CYCLES = 12, 24, 32, 60, 5
text = "".join(topics[k] for k in sorted(topics))[:260000]
chars = sorted(set(text))
lut = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([lut[c] for c in text])
train_ids, val_ids = ids[:245000], ids[245000:]
lanes = train_ids[: len(train_ids) // LANES * LANES].view(LANES, -1)
UNK = len(chars)


class CharRNN(nn.Module):
    def __init__(self, vocab, dim=64, hid=128):
        super().__init__()
        self.emb = nn.Embedding(vocab + 1, dim)
        self.rnn = nn.GRU(dim, hid, batch_first=True)
        self.out = nn.Linear(hid, vocab)
        for k in range(3):
            nn.init.orthogonal_(self.rnn.weight_hh_l0.data[k * hid:(k + 1) * hid])
        self.rnn.bias_ih_l0.data[hid:2 * hid].fill_(1.0)

    def forward(self, x, h=None):
        y, h = self.rnn(self.emb(x), h)
        return self.out(y), h


@torch.no_grad()
def evaluate(model):
    """Held-out loss on 10 % corrupted input, the same corruption every time."""
    state = torch.get_rng_state()
    torch.manual_seed(1234)
    was = model.training
    model.eval()
    x = val_ids[: len(val_ids) // 65 * 65].view(-1, 65)[:150]
    inp = x[:, :-1].masked_fill(torch.rand(x.size(0), 64) < 0.1, UNK)
    loss = F.cross_entropy(model(inp)[0].flatten(0, 1), x[:, 1:].flatten()).item()
    model.train(was)
    torch.set_rng_state(state)
    return loss


def build():
    model = CharRNN(len(chars))
    opt = torch.optim.Adam(model.parameters(), lr=6e-3)
    return model, opt, CosineAnnealingWarmRestarts(opt, CYCLE, eta_min=1e-4), AveragedModel(model)


def save(objs, step, pos, h):
    buf = io.BytesIO()
    torch.save({"objs": [o.state_dict() for o in objs], "step": step, "pos": pos, "h": h,
                "rng": torch.get_rng_state()}, buf)
    buf.seek(0)
    return buf


def fit(objs, step, pos, h, stop):
    model, opt, sched, swa = objs
    model.train()
    while step < stop:
        if pos + BPTT + 1 > lanes.size(1):
            pos, h = 0, None
        w = lanes[:, pos:pos + BPTT + 1]
        inp = w[:, :-1].masked_fill(torch.rand(LANES, BPTT) < 0.1, UNK)
        logits, h = model(inp, h)
        h = h.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), w[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        sched.step()
        step, pos = step + 1, pos + BPTT
        if step % 15 == 0 or step == 1:
            print(f"step {step:4d} loss {loss.item():.4f} lr {opt.param_groups[0]['lr']:.5f}")
        if step > CYCLE * (CYCLES - 1) + CYCLE // 2 and step % 3 == 0:
            swa.update_parameters(model)
        if step % CYCLE == 0:
            print(f"   cycle {step // CYCLE} val {evaluate(model):.4f}")
    return step, pos, h


torch.manual_seed(SEED)
objs = build()
step, pos, h = fit(objs, 0, 0, None, 135)
ckpt = save(objs, step, pos, h)

torch.manual_seed(SEED)
objs = build()
c = torch.load(ckpt)
for o, s in zip(objs, c["objs"]):
    o.load_state_dict(s)
torch.set_rng_state(c["rng"])
print(f"resumed at step {c['step']}")
fit(objs, c["step"], c["pos"], c["h"], CYCLE * CYCLES)
print(f"final val {evaluate(objs[0]):.4f} averaged {evaluate(objs[3].module):.4f}")
