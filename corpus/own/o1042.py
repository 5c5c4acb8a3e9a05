import random
from dataclasses import dataclass, field

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

INTENTS = ["balance", "card_lost", "transfer", "opening_hours", "loan", "fees", "password", "closing"]


@dataclass
class Arguments:
    vocab_size: int = 180
    max_length: int = 20
    per_device_batch_size: int = 24
    num_epochs: int = 2
    learning_rate: float = 1.5e-3
    warmup_ratio: float = 0.1
    shuffle_buffer: int = 100
    num_workers: int = 2
    seed: int = 12
    hidden: dict = field(default_factory=lambda: dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                                      intermediate_size=128))


def write_export(per_intent, args, seed):
    rng = random.Random(seed)
    world = random.Random(0)
    topical = {c: world.sample(range(20, args.vocab_size), 24) for c in range(len(INTENTS))}
    rows = []
    for label in range(len(INTENTS)):
        for _ in range(per_intent):
            n = rng.randint(8, args.max_length - 1)
            words = [rng.choice(topical[label]) if rng.random() < 0.45 else rng.randrange(3, args.vocab_size)
                     for _ in range(n)]
            rows.append({"input_ids": [1] + words, "label": label})
    return rows


class StreamingRows(IterableDataset):
    def __init__(self, rows, buffer_size, seed):
        self.rows, self.buffer_size, self.seed = rows, buffer_size, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        wid, n = (info.id, info.num_workers) if info else (0, 1)
        rng = random.Random(self.seed + 100 * self.epoch + wid)
        buffer = []
        for row in self.rows[wid::n]:
            if len(buffer) < self.buffer_size:
                buffer.append(row)
                continue
            k = rng.randrange(self.buffer_size)
            yield buffer[k]
            buffer[k] = row
        rng.shuffle(buffer)
        yield from buffer


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (width - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["label"] for r in rows])}


@torch.no_grad()
def evaluate(model, rows):
    model.eval()
    batch = collate(rows)
    out = model(**batch)
    acc = (out.logits.argmax(-1) == batch["labels"]).float().mean().item()
    model.train()
    return {"eval_loss": round(out.loss.item(), 4), "eval_accuracy": round(acc, 4)}


def main():
    args = Arguments()
    torch.manual_seed(args.seed)
    train_rows = write_export(400, args, 1)
    eval_rows = write_export(40, args, 2)
    dataset = StreamingRows(train_rows, args.shuffle_buffer, args.seed)
    loader = DataLoader(dataset, batch_size=args.per_device_batch_size, num_workers=args.num_workers,
                        collate_fn=collate)
    config = BertConfig(vocab_size=args.vocab_size, num_labels=len(INTENTS), max_position_embeddings=32,
                        hidden_dropout_prob=0.05, attention_probs_dropout_prob=0.05, initializer_range=0.05,
                        **args.hidden)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    total = args.num_epochs * len(train_rows) // args.per_device_batch_size
    scheduler = get_linear_schedule_with_warmup(optimizer, int(args.warmup_ratio * total), total)
    step, model = 0, model.train()
    for epoch in range(args.num_epochs):
        dataset.set_epoch(epoch)
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 15 == 0:
                print({"loss": round(loss.item(), 4), "learning_rate": scheduler.get_last_lr()[0],
                       "epoch": round(step / (total / args.num_epochs), 2)})
        print(evaluate(model, eval_rows))


if __name__ == "__main__":
    main()
