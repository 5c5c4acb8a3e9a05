import argparse
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, DistilBertConfig, DistilBertForSequenceClassification

torch.set_num_threads(1)
torch.manual_seed(7)

ap = argparse.ArgumentParser()
ap.add_argument("--train-size", type=int, default=96)
ap.add_argument("--eval-size", type=int, default=200)
ap.add_argument("--steps", type=int, default=140)
opts = ap.parse_args()


class Rows(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 2, (n,), generator=g)
        self.x = torch.randint(20, 200, (n, 16), generator=g)
        for i in range(n):
            for j in torch.randperm(16, generator=g)[:3]:
                side = int(self.y[i]) if torch.rand(1, generator=g) < 0.8 else 1 - int(self.y[i])
                self.x[i, j] = torch.randint(0, 10, (1,), generator=g) + 10 * side

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"input_ids": self.x[i], "labels": self.y[i]}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        keep = {k: round(v, 4) for k, v in logs.items() if k in ("loss", "eval_loss")}
        if keep:
            print(state.global_step, keep, flush=True)


model = DistilBertForSequenceClassification(DistilBertConfig(
    vocab_size=200, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=16,
    dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=2,
))
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="/tmp/q022_out", max_steps=opts.steps, per_device_train_batch_size=24, per_device_eval_batch_size=100,
        learning_rate=1e-3, lr_scheduler_type="constant", logging_steps=10, eval_strategy="steps", eval_steps=20,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=7, weight_decay=0.0,
    ),
    train_dataset=Rows(opts.train_size, 1),
    eval_dataset=Rows(opts.eval_size, 2),
    callbacks=[Show()],
)
trainer.remove_callback(__import__("transformers").trainer_callback.PrinterCallback)
trainer.train()
