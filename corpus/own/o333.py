import tempfile
import torch
from pydoc_data.topics import topics
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

logging.set_verbosity_error()
BLOCK = 48


class Blocks(torch.utils.data.Dataset):
    def __init__(self, ids):
        self.rows = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}")
        if "eval_loss" in logs:
            print(f"step {state.global_step} eval {float(logs['eval_loss']):.4f}")


def main():
    set_seed(71)
    text = "".join(topics[k] for k in sorted(topics))
    chars = sorted(set(text))
    table = {c: i for i, c in enumerate(chars)}
    ids = torch.tensor([table[c] for c in text])
    train, held = Blocks(ids[:2400]), Blocks(ids[-4000:])
    config = GPT2Config(vocab_size=len(chars), n_positions=BLOCK, n_embd=96, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, max_steps=200, per_device_train_batch_size=10,
                                 per_device_eval_batch_size=32, learning_rate=4e-3, warmup_steps=10,
                                 lr_scheduler_type="constant_with_warmup", logging_steps=20, eval_steps=20,
                                 eval_strategy="steps", save_strategy="no", report_to=[], disable_tqdm=True,
                                 use_cpu=True, logging_first_step=True, weight_decay=0.0)
        trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=held, callbacks=[Printer()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main()
