import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(40)
BASE_VOCAB, NEW_WORDS, SEQ = 64, 48, 24
general = torch.randint(0, BASE_VOCAB, (BASE_VOCAB, 2))
medical = torch.randint(0, BASE_VOCAB + NEW_WORDS, (BASE_VOCAB + NEW_WORDS, 2))


def corpus(table, n):
    rows = torch.zeros(n, SEQ, dtype=torch.long)
    rows[:, 0] = torch.randint(0, len(table), (n,))
    for t in range(1, SEQ):
        branch = (torch.rand(n) < 0.25).long()
        nxt = table[rows[:, t - 1], branch]
        jump = torch.rand(n) < 0.1
        rows[:, t] = torch.where(jump, torch.randint(0, len(table), (n,)), nxt)
    return rows


def extend_vocabulary(model, size):
    old = model.get_input_embeddings()
    new = nn.Embedding(size, old.embedding_dim)
    nn.init.normal_(new.weight, std=model.config.initializer_range)
    with torch.no_grad():
        new.weight[:old.num_embeddings] = old.weight
    model.set_input_embeddings(new)
    model.lm_head = nn.Linear(old.embedding_dim, size, bias=False)
    model.lm_head.weight = new.weight
    model.config.vocab_size = size


class Trainer:
    def __init__(self, model, lr, weight_decay=0.01):
        self.model = model
        self.lr = lr
        self.weight_decay = weight_decay
        self.configure()

    def configure(self):
        decay = [p for p in self.model.parameters() if p.dim() >= 2]
        plain = [p for p in self.model.parameters() if p.dim() < 2]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": self.weight_decay},
                                            {"params": plain, "weight_decay": 0.0}], lr=self.lr)

    def train(self, data, steps, name):
        self.model.train()
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr * min(1.0, (step + 1) / 20) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
            batch = data[torch.randint(0, len(data), (24,))]
            loss = self.model(input_ids=batch, labels=batch).loss
            self.model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % 40 == 0 or step == steps - 1:
                print(f"[{name}] step {step} loss {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        logits = self.model(input_ids=data).logits[:, :-1]
        target = data[:, 1:]
        nll = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        new = target >= BASE_VOCAB
        text = f"loss {nll.mean().item():.4f} accuracy {(logits.argmax(-1) == target).float().mean().item():.4f}"
        if new.any():
            text += f" loss on added words {nll[new].mean().item():.4f}"
        return text


config = GPT2Config(vocab_size=BASE_VOCAB, n_positions=SEQ, n_embd=64, n_layer=2, n_head=4,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
pretrainer = Trainer(model, lr=3e-3)
pretrainer.train(corpus(general, 3000), 150, "general")
print("general held-out", pretrainer.evaluate(corpus(general, 200)))

extend_vocabulary(model, BASE_VOCAB + NEW_WORDS)
trainer = Trainer(model, lr=2e-3)
trainer.train(corpus(medical, 4000), 200, "medical")
print("medical held-out", trainer.evaluate(corpus(medical, 300)))
