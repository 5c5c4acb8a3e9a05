import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

torch.set_num_threads(1)


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--grad-accum", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--n", type=int, default=480)
    p.add_argument("--seed", type=int, default=21)
    return p.parse_args()


def make_dataset(n):
    x = torch.randint(5, 60, (n, 24))
    x[:, 0] = 1
    y = torch.randint(0, 3, (n,))
    for i in range(n):
        where = torch.randperm(23)[:4] + 1
        x[i, where] = 60 + y[i]
    return TensorDataset(x, y)


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(make_dataset(args.n), batch_size=args.batch_size, shuffle=True)
    config = BertConfig(
        vocab_size=64,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=3,
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    for epoch in range(args.epochs):
        optimizer.zero_grad()
        running, hits, seen = 0.0, 0, 0
        for step, (ids, labels) in enumerate(loader):
            out = model(input_ids=ids, labels=labels)
            (out.loss / args.grad_accum).backward()
            if (step + 1) % args.grad_accum == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            running += out.loss.item() * len(ids)
            hits += (out.logits.argmax(-1) == labels).sum().item()
            seen += len(ids)
        print(f"epoch {epoch + 1:2d} train_loss {running / seen:.4f} train_acc {hits / seen:.3f}")


main()
