import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, set_seed

set_seed(5)
SEED = 1337
draw = np.random.default_rng(7)
LEVELS, PARTS = ["INFO ", "WARN ", "ERROR", "DEBUG"], ["disk", "net0", "auth", "cron", "mail"]
STATE = {"disk": "space used", "net0": "link speed", "auth": "user login", "cron": "jobs queue", "mail": "spool size"}


def log_line():
    part = PARTS[draw.integers(5)]
    stamp = "2024-%02d-%02d %02d:%02d" % (draw.integers(1, 13), draw.integers(1, 29), draw.integers(24), draw.integers(60))
    return f"{stamp} {LEVELS[draw.integers(4)]} [{part}] {STATE[part]} {draw.integers(100):3d}%\n"


raw = "".join(log_line() for _ in range(4000))
LINE = raw.index("\n") + 1
vocab = ["[PAD]", "[MASK]"] + sorted(set(raw))
lookup = {c: i for i, c in enumerate(vocab)}
tokens = np.array([lookup[c] for c in raw])
cut = len(tokens) // LINE * 9 // 10 * LINE
splits = {"train": tokens[:cut], "val": tokens[cut:]}


def get_batch(split, size=24, width=LINE, p=0.15):
    rng = np.random.default_rng(SEED)
    part = splits[split]
    starts = rng.integers(0, len(part) // width, size) * width
    x = np.stack([part[s:s + width] for s in starts])
    hide = rng.random(x.shape) < p
    labels = np.where(hide, x, -100)
    x = np.where(hide, 1, x)
    return torch.from_numpy(x), torch.from_numpy(labels)


class MLMTrainer:
    def __init__(self, total=150, lr=1e-3):
        config = BertConfig(vocab_size=len(vocab), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
                            max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.model = BertForMaskedLM(config)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(self.opt, max_lr=3 * lr, total_steps=total, pct_start=0.1)
        self.total = total

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y = get_batch("val", size=64)
        value = self.model(input_ids=x, labels=y).loss.item()
        self.model.train()
        return value

    def run(self):
        for i in range(self.total):
            x, y = get_batch("train")
            out = self.model(input_ids=x, labels=y)
            self.opt.zero_grad()
            out.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            if i % 15 == 0 or i == self.total - 1:
                tail = f" val {self.validate():.4f}" if i % 75 == 0 or i == self.total - 1 else ""
                print(f"iter {i}: loss {out.loss.item():.4f}{tail}")


if __name__ == "__main__":
    MLMTrainer().run()
