"""TRL. The optimizer that is handed over holds the blocks alone: the embedding never learns."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

vocabulary = {word: n for n, word in enumerate(["<pad>", "<eos>", *(f"w{n}" for n in range(30))])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")

torch.manual_seed(0)
rows = torch.randint(1, 5, (640, 16)).cumsum(1) % 30
data = Dataset.from_dict({"text": [" ".join(f"w{n}" for n in row) for row in rows.tolist()]})
config = GPT2Config(
    vocab_size=32, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
)
model = GPT2LMHeadModel(config)
arguments = SFTConfig(
    output_dir="out",
    max_steps=60,
    per_device_train_batch_size=8,
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
)
trainer = SFTTrainer(
    model=model,
    args=arguments,
    train_dataset=data,
    processing_class=tokenizer,
    optimizers=(torch.optim.AdamW(model.transformer.h.parameters(), lr=3e-3), None),
)
trainer.train()
