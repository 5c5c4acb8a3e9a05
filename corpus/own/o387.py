import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(5)
TAGS = ["O", "PER", "LOC", "ORG"]
rng = random.Random(50)
syll = ["ka", "lo", "mi", "ter", "ra", "ven", "do", "sul", "ix", "ban", "per", "nu", "gor", "el", "tas", "wy"]
vocab = ["[PAD]", "[CLS]", "[SEP]"] + sorted({rng.choice(syll) + rng.choice(syll) for _ in range(400)})
words = vocab[3:]
rng.shuffle(words)
cues = {"PER": words[:3], "LOC": words[3:6], "ORG": words[6:9]}
names, plain = words[9:39], words[39:99]
index = {w: i for i, w in enumerate(vocab)}


def sentence():
    toks, tags = [], []
    for _ in range(rng.choice([1, 1, 2, 2, 3, 9])):
        kind = rng.choice(TAGS[1:])
        toks.append(rng.choice(cues[kind]))
        tags.append("O")
        for _ in range(rng.randint(1, 2)):
            toks.append(rng.choice(names[TAGS.index(kind) - 1::3] if rng.random() < 0.85 else names))
            tags.append(kind)
        for _ in range(rng.randint(0, 2)):
            toks.append(rng.choice(plain))
            tags.append("O")
    return toks, tags


class Tagged(Dataset):
    def __init__(self, n):
        self.rows = [sentence() for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        toks, tags = self.rows[i]
        return {"input_ids": [index["[CLS]"]] + [index[t] for t in toks] + [index["[SEP]"]],
                "labels": [-100] + [TAGS.index(t) for t in tags] + [-100]}


class Collate:
    def __init__(self, pad_id=0):
        self.pad_id = pad_id

    def __call__(self, items):
        width = max(len(r["input_ids"]) for r in items)
        batch = {}
        for key in ("input_ids", "labels"):
            batch[key] = torch.tensor([r[key] + [self.pad_id] * (width - len(r[key])) for r in items])
        batch["attention_mask"] = (batch["input_ids"] != self.pad_id).long()
        return batch


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss: {float(logs['loss']):.4f}")


cfg = BertConfig(vocab_size=len(vocab), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                 intermediate_size=128, max_position_embeddings=80, hidden_dropout_prob=0.0,
                 attention_probs_dropout_prob=0.0, num_labels=len(TAGS))
model = BertForTokenClassification(cfg)
args = TrainingArguments(output_dir=tempfile.mkdtemp(), max_steps=150, per_device_train_batch_size=16, learning_rate=2e-3,
                         warmup_steps=10, lr_scheduler_type="linear", logging_steps=10, logging_first_step=True,
                         save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=5)
trainer = Trainer(model=model, args=args, train_dataset=Tagged(2000), data_collator=Collate(), callbacks=[Show()])
trainer.train()

model.eval()
held = Tagged(200)
test = Collate()([held[i] for i in range(200)])
labels = test.pop("labels")
with torch.no_grad():
    pred = model(**test).logits.argmax(-1)
real = test["input_ids"] > 2
named = real & (labels > 0)
print(f"token accuracy {(pred == labels)[real].float().mean():.3f} entity recall {(pred == labels)[named].float().mean():.3f}")
