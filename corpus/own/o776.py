import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(70)
torch.set_num_threads(1)
A, BOS, SEP, EOS = 8, 8, 9, 10
PAD = EOS
COUNT0 = 12
MAXNEW = 10


def sample():
    body = [random.randrange(A) for _ in range(random.randint(3, 7))]
    n = random.randint(2, len(body))
    return [BOS, COUNT0 + n] + body + [SEP], body[:n] + [EOS]


def collate(rows):
    width = max(len(p) + len(a) for p, a in rows)
    ids = torch.full((len(rows), width), PAD)
    att = torch.zeros(len(rows), width, dtype=torch.long)
    plen = torch.tensor([len(p) for p, _ in rows])
    for i, (p, a) in enumerate(rows):
        ids[i, :len(p) + len(a)] = torch.tensor(p + a)
        att[i, :len(p) + len(a)] = 1
    labels = ids.clone()
    labels[ids == PAD] = -100
    labels[torch.arange(width)[None] < plen[:, None]] = -100
    return ids, att, labels


model = LlamaForCausalLM(LlamaConfig(
    vocab_size=22, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD))
for n, p in model.named_parameters():
    if p.dim() > 1:
        nn.init.normal_(p, std=0.08)
opt = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98), weight_decay=0.01)
STEPS = 300
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=STEPS, pct_start=0.1)
test = [sample() for _ in range(40)]


@torch.no_grad()
def generate(prompt):
    seq = list(prompt)
    for _ in range(MAXNEW):
        t = int(model(input_ids=torch.tensor([seq])).logits[0, -1].argmax())
        seq.append(t)
        if t == EOS:
            break
    return seq[len(prompt):]


for step in range(STEPS):
    ids, att, labels = collate([sample() for _ in range(40)])
    loss = model(input_ids=ids, attention_mask=att, labels=labels).loss
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 30 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f}")
outs = [generate(p) for p, _ in test]
exact = sum(o == a for o, (_, a) in zip(outs, test)) / len(test)
prefix = sum(o[:len(a) - 1] == a[:-1] for o, (_, a) in zip(outs, test)) / len(test)
stopped = sum(o[-1] == EOS for o in outs) / len(outs)
print(f"exact {exact:.2f} right digits {prefix:.2f} stopped {stopped:.2f} mean length {sum(map(len, outs)) / len(outs):.1f}")
