import math
import random

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

AA = "ACDEFGHIKLMNPQRSTVWY"
BACKGROUND = [8.3, 1.4, 5.5, 6.7, 3.9, 7.1, 2.3, 5.9, 5.8, 9.7, 2.4, 4.1, 4.7, 3.9, 5.5, 6.6, 5.3, 6.9, 1.1, 2.9]
PAD, CLS, MASK, OFF = 0, 1, 2, 3
LEN = 40


class Families(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(123)
        self.consensus = [rng.choices(AA, BACKGROUND, k=LEN) for _ in range(6)]
        self.kept = [set(rng.sample(range(LEN), 14)) for _ in range(6)]
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            f = rng.randrange(6)
            seq = [self.consensus[f][i] if i in self.kept[f] and rng.random() < 0.95
                   else rng.choices(AA, BACKGROUND)[0] for i in range(rng.randint(32, LEN))]
            self.rows.append([CLS] + [AA.index(a) + OFF for a in seq])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def mask_collate(features):
    L = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor([f["input_ids"] + [PAD] * (L - len(f["input_ids"])) for f in features])
    attention = (ids != PAD).long()
    labels = ids.clone()
    chosen = (torch.rand(ids.shape) < 0.15) & (ids >= OFF)
    labels[~chosen] = -100
    r = torch.rand(ids.shape)
    ids[chosen & (r < 0.8)] = MASK
    swap = chosen & (r > 0.9)
    ids[swap] = torch.randint(OFF, OFF + 20, (int(swap.sum()),))
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f} lr {float(logs['learning_rate']):.2e}", flush=True)


torch.manual_seed(0)
cfg = BertConfig(vocab_size=OFF + 20, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                 intermediate_size=192, max_position_embeddings=64, hidden_dropout_prob=0.05,
                 attention_probs_dropout_prob=0.0, pad_token_id=PAD)
model = BertForMaskedLM(cfg)
args = TrainingArguments(output_dir="/tmp/mlm_out", per_device_train_batch_size=32, max_steps=400,
                         learning_rate=2e-3, warmup_steps=40, lr_scheduler_type="cosine", weight_decay=0.01,
                         logging_steps=20, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
                         remove_unused_columns=False, seed=0, dataloader_num_workers=0)
train, test = Families(6000, 1), Families(300, 2)
trainer = Trainer(model=model, args=args, train_dataset=train, data_collator=mask_collate, callbacks=[Print()])
trainer.train()

model.eval()
right = total = 0
with torch.no_grad():
    for _ in range(3):
        b = mask_collate([test[i] for i in range(len(test))])
        pred = model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits.argmax(-1)
        sel = b["labels"] != -100
        right += (pred[sel] == b["labels"][sel]).sum().item()
        total += sel.sum().item()
p = [x / sum(BACKGROUND) for x in BACKGROUND]
print(f"masked accuracy {right / total:.3f}; background entropy {-sum(x * math.log(x) for x in p):.3f}")
