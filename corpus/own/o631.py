import math
import random
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn

random.seed(3)
torch.manual_seed(3)


@dataclass
class Seq2SeqConfig:
    vocab_size: int = 40
    d_model: int = 64
    num_heads: int = 4
    ffn_dim: int = 128
    layers: int = 2
    max_position: int = 40
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    dropout: float = 0.0


@dataclass
class Seq2SeqOutput:
    loss: Optional[torch.Tensor]
    logits: torch.Tensor


def shift_tokens_right(labels, pad_token_id, decoder_start_token_id):
    shifted = labels.new_zeros(labels.shape)
    shifted[:, 1:] = labels[:, :-1].clone()
    shifted[:, 0] = decoder_start_token_id
    shifted.masked_fill_(shifted == -100, pad_token_id)
    return shifted


class TinyForConditionalGeneration(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.shared = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.pos_enc = nn.Embedding(config.max_position, config.d_model)
        self.pos_dec = nn.Embedding(config.max_position, config.d_model)
        nn.init.normal_(self.shared.weight, std=0.3)
        nn.init.normal_(self.pos_enc.weight, std=0.3)
        nn.init.normal_(self.pos_dec.weight, std=0.3)
        args = dict(d_model=config.d_model, nhead=config.num_heads, dim_feedforward=config.ffn_dim,
                    dropout=config.dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**args), config.layers,
                                             norm=nn.LayerNorm(config.d_model), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**args), config.layers,
                                             norm=nn.LayerNorm(config.d_model))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)

    def forward(self, input_ids, attention_mask, labels=None, decoder_input_ids=None):
        cfg = self.config
        if decoder_input_ids is None:
            decoder_input_ids = shift_tokens_right(labels, cfg.pad_token_id, cfg.bos_token_id)
        S, T = input_ids.shape[1], decoder_input_ids.shape[1]
        src = self.shared(input_ids) + self.pos_enc(torch.arange(S))
        tgt = self.shared(decoder_input_ids) + self.pos_dec(torch.arange(T))
        pad = attention_mask == 0
        memory = self.encoder(src, src_key_padding_mask=pad)
        causal = torch.ones(T, T).triu(1).bool()
        hidden = self.decoder(tgt, memory, tgt_mask=causal, memory_key_padding_mask=pad)
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss_fct = nn.CrossEntropyLoss()
            loss = loss_fct(logits.view(-1, cfg.vocab_size), labels.view(-1))
        return Seq2SeqOutput(loss=loss, logits=logits)


table = list(range(3, 40))
random.shuffle(table)
lexicon = {s: t for s, t in zip(range(3, 40), table)}


def make_example(cfg):
    n = random.choice([2, 3, 3, 4, 4, 5, 6])
    src = [random.randrange(3, cfg.vocab_size) for _ in range(n)]
    tgt = [lexicon[t] for t in reversed(src)]
    return {"input_ids": src + [cfg.eos_token_id], "labels": tgt + [cfg.eos_token_id]}


@dataclass
class DataCollatorForSeq2Seq:
    pad_token_id: int
    max_length: int = 28

    def __call__(self, features):
        input_ids, attention_mask, labels = [], [], []
        src_len = max(len(f["input_ids"]) for f in features)
        for f in features:
            ids, lab = f["input_ids"], f["labels"]
            input_ids.append(ids + [self.pad_token_id] * (src_len - len(ids)))
            attention_mask.append([1] * len(ids) + [0] * (src_len - len(ids)))
            labels.append(lab + [self.pad_token_id] * (self.max_length - len(lab)))
        return {
            "input_ids": torch.tensor(input_ids),
            "attention_mask": torch.tensor(attention_mask),
            "labels": torch.tensor(labels),
        }


@torch.no_grad()
def exact_match(model, examples, collator):
    cfg = model.config
    batch = collator(examples)
    ids = torch.full((len(examples), 1), cfg.bos_token_id)
    for _ in range(8):
        out = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=ids)
        ids = torch.cat([ids, out.logits[:, -1:].argmax(-1)], dim=1)
    hits = 0
    for row, ex in zip(ids[:, 1:].tolist(), examples):
        hits += row[: len(ex["labels"])] == ex["labels"]
    return hits / len(examples)


config = Seq2SeqConfig()
model = TinyForConditionalGeneration(config)
collator = DataCollatorForSeq2Seq(config.pad_token_id)
train_set = [make_example(config) for _ in range(6000)]
eval_set = [make_example(config) for _ in range(200)]

max_steps, warmup = 240, 20
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min(1.0, (s + 1) / warmup) * max(0.05, 0.5 * (1 + math.cos(math.pi * s / max_steps))))

loader = torch.utils.data.DataLoader(train_set, batch_size=24, shuffle=True, collate_fn=collator)
model.train()
for step, batch in enumerate(loader):
    if step >= max_steps:
        break
    outputs = model(**batch)
    outputs.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 25 == 0 or step == max_steps - 1:
        print(f"step {step} loss {outputs.loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
model.eval()
print(f"exact match {exact_match(model, eval_set, collator):.3f}")
