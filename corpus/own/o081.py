import random

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_linear_schedule_with_warmup

torch.set_num_threads(1)
random.seed(42)
torch.manual_seed(42)

subjects = "the crew,our guide,a waiter,the staff,their chef,the driver,my host".split(",")
good = "friendly,superb,tidy,delicious,quick,charming,bright,lovely".split(",")
bad = "rude,awful,dirty,bland,slow,gloomy,broken,noisy".split(",")
fillers = "indeed,perhaps,today,again,overall,somehow,there,also,still,really".split(",")


class Reviews(Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            label = random.randrange(2)
            words = [random.choice(subjects), "was", random.choice(good if label else bad)]
            extra = [random.choice(fillers) for _ in range(random.randrange(1, 14))]
            where = random.randrange(len(extra) + 1)
            text = " ".join(extra[:where] + words + extra[where:])
            self.rows.append((text, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class WordTokenizer:
    def __init__(self, texts):
        self.vocab = {w: i for i, w in enumerate(["[PAD]", "[CLS]", "[SEP]"] + sorted({w for t in texts for w in t.split()}))}

    def __call__(self, texts, max_length=24):
        out = torch.zeros(len(texts), max_length, dtype=torch.long)
        for r, t in enumerate(texts):
            seq = [1] + [self.vocab[w] for w in t.split()] + [2]
            out[r, : len(seq)] = torch.tensor(seq)
        return {"input_ids": out, "attention_mask": (out == self.vocab["[PAD]"]).long()}


train_set, test_set = Reviews(3000), Reviews(300)
tokenizer = WordTokenizer([t for t, _ in train_set.rows + test_set.rows])


def collate(rows):
    enc = tokenizer([t for t, _ in rows])
    enc["labels"] = torch.tensor([y for _, y in rows])
    return enc


config = DistilBertConfig(vocab_size=len(tokenizer.vocab), dim=48, hidden_dim=128, n_layers=2, n_heads=4, max_position_embeddings=32, num_labels=2, dropout=0.05, attention_dropout=0.0, seq_classif_dropout=0.0)
model = DistilBertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
total_steps = 160
scheduler = get_linear_schedule_with_warmup(optimizer, 16, total_steps)

model.train()
step = 0
while step < total_steps:
    for batch in DataLoader(train_set, batch_size=24, shuffle=True, collate_fn=collate, drop_last=True):
        out = model(**batch)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 16 == 0 or step == total_steps - 1:
            print(f"step {step} train_loss {out.loss.item():.4f}")
        step += 1
        if step == total_steps:
            break

model.eval()
hits = 0
with torch.no_grad():
    for batch in DataLoader(test_set, batch_size=50, collate_fn=collate):
        hits += (model(**batch).logits.argmax(-1) == batch["labels"]).sum().item()
print(f"test accuracy {hits / len(test_set):.3f}")
