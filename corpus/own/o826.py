import random
import torch
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, TrainerCallback, set_seed

set_seed(12)
torch.set_num_threads(1)
A = 12
BOS, SEP, EOS, PAD = A, A + 1, A + 2, A + 3


def example(rng, n):
    body = [rng.randrange(A) for _ in range(n)]
    ans = [max(body), min(body), body[0]]
    return [BOS] + body + [SEP], ans + [EOS]


class Sorted(Dataset):
    def __init__(self, n, seed, passes=1):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(passes):
            part = [example(rng, rng.randint(3, 12)) for _ in range(n)]
            part.sort(key=lambda e: len(e[0]))
            self.rows += part

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"prompt": self.rows[i][0], "answer": self.rows[i][1]}


def collate(rows):
    width = max(len(r["prompt"]) + len(r["answer"]) for r in rows)
    ids, lab, att = [], [], []
    for r in rows:
        seq = r["prompt"] + r["answer"]
        pad = width - len(seq)
        ids.append(seq + [PAD] * pad)
        att.append([1] * len(seq) + [0] * pad)
        lab.append([-100] * len(r["prompt"]) + r["answer"] + [-100] * pad)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(lab), "attention_mask": torch.tensor(att)}


class CurriculumTrainer(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"step {state.global_step:3d} loss {float(logs['loss']):.4f} lr {float(logs['learning_rate']):.2e}")


@torch.no_grad()
def exact(model, data):
    model.eval()
    hit = tok = n = 0
    for i in range(0, len(data), 50):
        b = collate([data[j] for j in range(i, min(i + 50, len(data)))])
        p = model(input_ids=b["input_ids"], attention_mask=b["attention_mask"]).logits[:, :-1].argmax(-1)
        y = b["labels"][:, 1:]
        m = y != -100
        ok = (p == y) | ~m
        hit += ok.all(1).sum().item()
        tok += (p == y)[m].sum().item()
        n += m.sum().item()
    return hit / len(data), tok / n


model = GPT2LMHeadModel(GPT2Config(vocab_size=A + 4, n_positions=32, n_embd=48, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                   bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD))
test = Sorted(300, 1000)
print("before: exact match %.3f token acc %.3f" % exact(model, test))
args = TrainingArguments(output_dir="/tmp/b_h19", per_device_train_batch_size=32, num_train_epochs=1, learning_rate=4e-3,
                         lr_scheduler_type="cosine", warmup_steps=20, weight_decay=0.01, logging_steps=20,
                         save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, remove_unused_columns=False)
CurriculumTrainer(model=model, args=args, train_dataset=Sorted(1280, 7, passes=8), data_collator=collate,
                  callbacks=[Print()]).train()
print("after: exact match %.3f token acc %.3f" % exact(model, test))
