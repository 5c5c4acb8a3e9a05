import argparse
import datetime
import inspect
import json.decoder
import random
import re
import socket

import torch
import torch.nn as nn
from transformers import BertConfig, BertModel

random.seed(11)
torch.manual_seed(11)
SOURCES = [argparse, datetime, json.decoder, socket]
VOCAB = 800


def words(line):
    found = re.findall(r"\w+|[^\w\s]", line)
    return [2 + sum((i + 1) * ord(c) for i, c in enumerate(w)) % (VOCAB - 2) for w in found][:30]


examples = []
for label, module in enumerate(SOURCES):
    for line in inspect.getsource(module).splitlines():
        ids = words(line)
        if len(ids) >= 4:
            examples.append(([1] + ids, label))
random.shuffle(examples)


class LineClassifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        config = BertConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                            intermediate_size=128, max_position_embeddings=40, pad_token_id=0,
                            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.classify = nn.Linear(64, classes)

    def forward(self, rows):
        vectors = []
        for row in rows:
            ids = torch.tensor(row).unsqueeze(0)
            hidden = self.encoder(input_ids=ids).last_hidden_state
            vectors.append(hidden[0].mean(0))
        return self.classify(torch.stack(vectors))


model = LineClassifier(len(SOURCES))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch, done = 24, 0
model.train()
for epoch in range(10):
    random.shuffle(examples)
    for at in range(0, len(examples) - batch, batch):
        part = examples[at:at + batch]
        rows, labels = [p[0] for p in part], torch.tensor([p[1] for p in part])
        logits = model(rows)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if done % 10 == 0:
            print(f"step {done} loss {loss.item():.4f} acc {(logits.argmax(1) == labels).float().mean():.2f}")
        done += 1
        if done == 60:
            break
    if done == 60:
        break
print(f"done {done} loss {loss.item():.4f}")
