import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import AlbertConfig, AlbertForMaskedLM, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(12)
WHO = "alice bob carol dave erin frank grace heidi".split()
DOES = {"alice": "paints", "bob": "carries", "carol": "sells", "dave": "paints", "erin": "counts", "frank": "carries",
        "grace": "counts", "heidi": "sells"}
WHAT = {"paints": "walls", "carries": "stones", "sells": "apples", "counts": "coins"}
WHEN = "today yesterday often never".split()
WORDS = ["[PAD]", "[MASK]", "[CLS]", "and", "."] + WHO + sorted(set(DOES.values())) + sorted(WHAT.values()) + WHEN
ID = {w: i for i, w in enumerate(WORDS)}


def sentence():
    out = ["[CLS]"]
    for joint in ("and", "and", "."):
        who = random.choice(WHO)
        out += [who, DOES[who], WHAT[DOES[who]], random.choice(WHEN), joint]
    return torch.tensor([ID[w] for w in out])


class Sentences(Dataset):
    def __len__(self):
        return 4800

    def __getitem__(self, i):
        ids = sentence()
        hide = torch.rand(len(ids)) < 0.2
        hide[0] = False
        hide[random.randrange(1, len(ids))] = True
        return {"input_ids": ids.masked_fill(hide, ID["[MASK]"]), "labels": ids.masked_fill(~hide, -100)}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}")


config = AlbertConfig(vocab_size=len(WORDS), embedding_size=32, hidden_size=64, num_hidden_layers=4, num_hidden_groups=1,
                      num_attention_heads=4, intermediate_size=128, max_position_embeddings=32, pad_token_id=0,
                      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = AlbertForMaskedLM(config)
args = TrainingArguments(output_dir=tempfile.gettempdir(), max_steps=150, per_device_train_batch_size=32, learning_rate=2e-3,
                         lr_scheduler_type="cosine", warmup_steps=15, label_smoothing_factor=0.1, logging_steps=10,
                         weight_decay=0.01, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=12)
Trainer(model=model, args=args, train_dataset=Sentences(), callbacks=[Show()]).train()
