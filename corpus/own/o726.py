import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(11)
PATTERNS = [(0, 2, 4, 7), (0, 4, 2, 4), (7, 4, 2, 0), (0, 7, 4, 7)]
BOS = 0
N_PITCH = 24


def melody(rng, bars=9):
    root, pat = int(rng.integers(12)), int(rng.integers(4))
    out = [BOS]
    for _ in range(bars):
        out += [1 + (root + o) % N_PITCH for o in PATTERNS[pat]]
        root = (root + (5 if rng.random() < 0.8 else 7)) % 12
        if rng.random() < 0.25:
            pat = int(rng.integers(4))
    return out


class Melodies(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = [torch.tensor(melody(rng)) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        seq = self.rows[i]
        input_ids = seq[:-1]
        labels = input_ids.clone()
        return {"input_ids": input_ids, "labels": labels}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step}: loss {float(logs['loss']):.4f}")


model = GPT2LMHeadModel(GPT2Config(
    vocab_size=N_PITCH + 1, n_positions=40, n_embd=64, n_layer=2, n_head=4,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=BOS))

args = TrainingArguments(
    output_dir="melody_out", per_device_train_batch_size=24, max_steps=220, learning_rate=2e-3,
    warmup_steps=30, lr_scheduler_type="cosine", weight_decay=0.01, logging_steps=40, report_to=[],
    save_strategy="no", disable_tqdm=True, use_cpu=True, seed=11, dataloader_num_workers=0)

trainer = Trainer(model=model, args=args, train_dataset=Melodies(2400, 1), eval_dataset=Melodies(200, 2),
                  callbacks=[Printer()])
trainer.train()
print("eval loss", round(trainer.evaluate()["eval_loss"], 4))

model.eval()
rows = torch.stack(Melodies(200, 3).rows)
hits = tot = 0
with torch.no_grad():
    for cut in (22, 23, 24):
        nxt = model(rows[:, :cut]).logits[:, -1].argmax(-1)
        hits += (nxt == rows[:, cut]).sum().item()
        tot += len(rows)
print(f"next-note accuracy inside a bar: {hits / tot:.3f}")
