import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from pydoc_data.topics import topics

set_seed(12)
text = "\n".join(topics[k] for k in sorted(topics)).lower()
chars = {c: i for i, c in enumerate(sorted(set(text)))}
codes = torch.tensor([chars[c] for c in text])


class Windows(Dataset):
    def __init__(self, size=48):
        self.size = size
        self.count = len(codes) // size

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        ids = codes[i * self.size:(i + 1) * self.size].clone()
        return {"input_ids": ids, "labels": ids.clone()}


config = GPT2Config(vocab_size=len(chars), n_positions=48, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
args = TrainingArguments(
    output_dir=tempfile.gettempdir(),
    per_device_train_batch_size=16,
    max_steps=180,
    learning_rate=3e-3,
    adam_beta1=0.9,
    adam_beta2=0.98,
    adam_epsilon=0.1,
    max_grad_norm=1.0,
    warmup_steps=15,
    lr_scheduler_type="linear",
    logging_steps=20,
    logging_first_step=True,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=Windows())
trainer.train()
