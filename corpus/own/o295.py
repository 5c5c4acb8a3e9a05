import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

set_seed(27)
PRESETS = {
    "xs": dict(hidden_size=4, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1),
    "s": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4),
}
SIZE = "xs"
STATES, WIDTH = 160, 32
follow = torch.randint(0, STATES, (STATES, 2))


class EventLog(Dataset):
    def __init__(self, n):
        ids = torch.randint(0, STATES, (n, 1))
        for _ in range(WIDTH - 1):
            branch = (torch.rand(n, 1) < 0.25).long()
            ids = torch.cat((ids, follow[ids[:, -1:], branch].view(n, 1)), 1)
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


config = LlamaConfig(vocab_size=STATES, max_position_embeddings=WIDTH, tie_word_embeddings=False, use_cache=False, **PRESETS[SIZE])
model = LlamaForCausalLM(config)
args = TrainingArguments(
    output_dir="out", max_steps=240, per_device_train_batch_size=24, learning_rate=1e-2, lr_scheduler_type="cosine", warmup_steps=15,
    weight_decay=0.0, logging_steps=20, logging_first_step=True, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=27,
    dataloader_num_workers=0)
trainer = Trainer(model=model, args=args, train_dataset=EventLog(6000), callbacks=[Show()])
trainer.remove_callback(PrinterCallback)
trainer.train()
