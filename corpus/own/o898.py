import numpy as np
import torch
from torch.utils.data import Dataset, DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(3)
rng = np.random.default_rng(3)

SUBJ = ["the cat", "a dog", "my friend", "the old man", "our teacher", "this robot"]
VERB = {"the cat": "chases", "a dog": "follows", "my friend": "likes", "the old man": "paints", "our teacher": "reads", "this robot": "builds"}
OBJ = {"chases": ["mice", "birds"], "follows": ["cars", "people"], "likes": ["music", "chess"],
       "paints": ["boats", "hills"], "reads": ["books", "letters"], "builds": ["walls", "engines"]}
PLACE = ["at home", "in the park", "near the river", "after lunch"]


def sentence():
    s = SUBJ[rng.integers(len(SUBJ))]
    v = VERB[s]
    o = OBJ[v][rng.integers(2)]
    return f"{s} {v} {o} {PLACE[rng.integers(4)]}. "


text = "".join(sentence() for _ in range(3000))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
split = int(0.95 * len(ids))


class CharDataset(Dataset):
    def __init__(self, data, block):
        self.data, self.block = data, block

    def __len__(self):
        return (len(self.data) - 1) // self.block

    def __getitem__(self, i):
        chunk = self.data[i * self.block:(i + 1) * self.block + 1]
        return {"input_ids": chunk[:-1], "labels": chunk[1:]}


BLOCK = 40
train_dl = DataLoader(CharDataset(ids[:split], BLOCK), batch_size=16, shuffle=True, drop_last=True)
val_dl = DataLoader(CharDataset(ids[split:], BLOCK), batch_size=32)

config = GPT2Config(vocab_size=len(chars), n_positions=128, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
EPOCHS = 3
total = EPOCHS * len(train_dl)
scheduler = get_linear_schedule_with_warmup(optimizer, 30, total)

step = 0
for epoch in range(EPOCHS):
    model.train()
    for batch in train_dl:
        out = model(input_ids=batch["input_ids"], labels=batch["labels"])
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {out.loss.item():.4f}")
        step += 1
    model.eval()
    losses, hit, count = [], 0, 0
    with torch.no_grad():
        for batch in val_dl:
            out = model(input_ids=batch["input_ids"], labels=batch["labels"])
            losses.append(out.loss.item())
            pred = out.logits.argmax(-1)
            hit += (pred[:, 20:-1] == batch["input_ids"][:, 21:]).sum().item()
            count += pred[:, 20:-1].numel()
    print(f"epoch {epoch} val loss {np.mean(losses):.4f} next-char accuracy {hit / count:.4f}")

model.eval()
prompt = torch.tensor([[stoi[c] for c in "the cat "]])
for _ in range(60):
    with torch.no_grad():
        logits = model(prompt[:, -BLOCK:]).logits[0, -1]
    nxt = torch.multinomial(torch.softmax(logits, -1), 1)
    prompt = torch.cat([prompt, nxt[None]], dim=1)
print("sample:", "".join(chars[i] for i in prompt[0].tolist()))
