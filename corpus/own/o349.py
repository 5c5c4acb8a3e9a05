import torch
from torch.optim import Optimizer
from transformers import BertConfig, BertForSequenceClassification, set_seed


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, (b1, b2), wd = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                m = state["exp_avg"]
                p.mul_(1 - lr * wd)
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-lr)
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


set_seed(31)
SEP, CLS, WORDS, TOPICS = 1, 2, 75, 6


def sentence_pairs(n):
    label, distractor = torch.randint(TOPICS, (2, n))
    a = 3 + label[:, None] * 12 + torch.randint(12, (n, 8))
    b = 3 + distractor[:, None] * 12 + torch.randint(12, (n, 8))
    a = torch.where(torch.rand(n, 8) < 0.4, torch.randint(3, WORDS, (n, 8)), a)
    cls, sep = torch.full((n, 1), CLS), torch.full((n, 1), SEP)
    ids = torch.cat([cls, a, sep, b, sep], 1)
    types = torch.cat([torch.zeros(n, 10), torch.ones(n, 9)], 1).long()
    return {"input_ids": ids, "token_type_ids": types, "labels": label}


config = BertConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=128, max_position_embeddings=32, num_labels=TOPICS,
                    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config).train()
total_steps, warmup = 150, 20
optimizer = Lion(model.parameters(), lr=2e-2, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / warmup, (total_steps - s) / (total_steps - warmup)))

history = []
for step in range(total_steps):
    out = model(**sentence_pairs(32))
    optimizer.zero_grad()
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    history.append(out.loss.item())
    if step % 15 == 0 or step == total_steps - 1:
        recent = history[-10:]
        print({"step": step, "loss": round(sum(recent) / len(recent), 4), "lr": scheduler.get_last_lr()[0]})
