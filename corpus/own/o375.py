from pydoc_data.topics import topics

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(141)
BLOCK = 32
corpus = "\n\n".join(topics[k] for k in sorted(topics)).lower()
alphabet = sorted(set(corpus))
code = {c: i for i, c in enumerate(alphabet)}


def blocks(text):
    ids = torch.tensor([code[c] for c in text])
    n = len(ids) // BLOCK
    return ids[:n * BLOCK].view(n, BLOCK)


cut = int(0.95 * len(corpus))
train_rows = blocks(corpus[:4000])
valid_rows = blocks(corpus[cut:cut + 4096])

config = GPT2Config(vocab_size=len(alphabet), n_positions=BLOCK, n_embd=96, n_layer=2, n_head=4, resid_pdrop=0.0,
                    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
loader = DataLoader(train_rows, batch_size=16, shuffle=True, drop_last=True)


@torch.no_grad()
def evaluate():
    model.eval()
    total = sum(model(input_ids=b, labels=b).loss.item() for b in valid_rows.split(64)) / len(valid_rows.split(64))
    model.train()
    return total


model.train()
step, goal, recent = 0, 240, []
while step < goal:
    for batch in loader:
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = (recent + [loss.item()])[-10:]
        if step % 30 == 0 or step == goal - 1:
            print(f"step {step:3d} train {sum(recent) / len(recent):.4f} valid {evaluate():.4f}", flush=True)
        step += 1
        if step == goal:
            break
