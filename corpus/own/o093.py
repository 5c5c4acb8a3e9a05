import tempfile
from pydoc_data.topics import topics

import torch
from transformers import OPTConfig, OPTForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

torch.set_num_threads(1)
set_seed(7)

text = " ".join(" ".join(topics[k].lower().split()) for k in sorted(topics))[:320000]
letters = sorted(set(text))
code = {c: i + 2 for i, c in enumerate(letters)}
ids = torch.tensor([code[c] for c in text])
BLOCK = 40
rows = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, i):
        return {"input_ids": rows[i], "labels": rows[i]}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")


config = OPTConfig(vocab_size=len(letters) + 2, hidden_size=64, word_embed_proj_dim=64, ffn_dim=192, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, init_std=0.06, pad_token_id=1, bos_token_id=0, eos_token_id=0, use_cache=False)
model = OPTForCausalLM(config)
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=160,
    per_device_train_batch_size=16,
    learning_rate=6e-2,
    lr_scheduler_type="constant_with_warmup",
    warmup_steps=15,
    weight_decay=0.0,
    max_grad_norm=1.0,
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(model=model, args=args, train_dataset=Rows(), callbacks=[Show()]).train()
