"""Small training scripts with one fault each, every fault in several spellings; and twins in which no change is surely right.

Each is the sound script below with a few lines put differently: `SICK[name].text`.
"""

from __future__ import annotations

from dataclasses import dataclass

SOUND = """\
import math
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
words = "".join(f"{n} times {n} is {n * n % 89}; " for n in range(400))
letters = sorted(set(words))
text = torch.tensor([letters.index(c) for c in words])
V, D, T, B, STEPS = len(letters), 16, 12, 8, 40


def get_batch():
    ix = torch.randint(len(text) - T, (B,))
    x = torch.stack([text[i : i + T] for i in ix])
    y = torch.stack([text[i + 1 : i + 1 + T] for i in ix])
    return x, y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.qkv(x).split(D, dim=2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(D)
        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return self.out(y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.attention, self.norm = Attention(), nn.LayerNorm(D)
        self.head = nn.Linear(D, V)

    def forward(self, x):
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        h = h + self.attention(self.norm(h))
        logits = self.head(h)
        return logits


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(STEPS):
    x, y = get_batch()
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, V), y.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
"""


@dataclass(frozen=True)
class Spelling:
    """A script with a fault, and what its diff adds: None where no fix may be offered."""

    cause: str
    text: str
    adds: str | None


def changed(*pairs: tuple[str, str]) -> str:
    text = SOUND
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


LOSS = "    loss = F.cross_entropy(logits.view(-1, V), y.view(-1))\n"
ZERO = "    optimizer.zero_grad()\n"
BACKWARD = "    loss.backward()\n"
STEP = "    optimizer.step()\n"
LOOP = SOUND[SOUND.index("model = Model()") :]
MASKED = '        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))\n'
BUFFER = '        self.register_buffer("mask", torch.tril(torch.ones(T, T)))\n'
BY_HAND = SOUND[SOUND.index("        att = (q @ k") : SOUND.index("        return self.out(y)")]
TARGETS = "    y = torch.stack([text[i + 1 : i + 1 + T] for i in ix])\n"
MAKE = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"

zero_grad = {
    "in the loop": Spelling("missing-zero-grad", changed((ZERO, "")), "    optimizer.zero_grad()"),
    "only before the loop": Spelling(
        "missing-zero-grad",
        changed((ZERO, ""), ("for step in", "optimizer.zero_grad()\nfor step in")),
        "    optimizer.zero_grad()",
    ),
    "in a function, with a scaler and accumulation": Spelling(
        "missing-zero-grad",
        changed(
            (
                LOOP,
                """\
def fit(net, opt, scaler):
    for step in range(STEPS):
        for _ in range(2):
            x, y = get_batch()
            loss = F.cross_entropy(net(x).view(-1, V), y.view(-1)) / 2
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


def make(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


model = Model()
fit(model, make(model), torch.amp.GradScaler("cpu", enabled=False))
""",
            )
        ),
        "        opt.zero_grad()",
    ),
    "in a class": Spelling(
        "missing-zero-grad",
        changed(
            (
                LOOP,
                """\
class Trainer:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def train_step(self):
        x, y = get_batch()
        loss = F.cross_entropy(self.net(x).view(-1, V), y.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()


trainer = Trainer(Model())
for step in range(STEPS):
    trainer.train_step()
""",
            )
        ),
        "        self.opt.zero_grad()",
    ),
    "most passes go on before the step": Spelling(
        "missing-zero-grad",
        changed(
            (
                ZERO + BACKWARD + STEP,
                """\
    (loss / 2).backward()
    if step % 2 == 0:
        continue
    optimizer.step()
""",
            ),
            ('    print("step", step, "loss", loss.item())\n', ""),
        ),
        "    optimizer.zero_grad()",
    ),
    "two places that step": Spelling(
        "missing-zero-grad",
        changed(
            (
                ZERO + BACKWARD + STEP,
                """\
    loss.backward()
    if step % 2:
        optimizer.step()
    else:
        optimizer.step()
""",
            )
        ),
        None,
    ),
    "cleared by hand, wrongly": Spelling(
        "missing-zero-grad",
        changed(
            (
                ZERO,
                "    for p in [model.head.weight]:\n        p.grad = None\n",
            )
        ),
        None,
    ),
}

shift = {
    "not shifted in get_batch": Spelling(
        "targets-misaligned",
        changed((TARGETS, "    y = torch.stack([text[i : i + T] for i in ix])\n")),
        "    y = torch.stack([text[i + 1 : i + T + 1] for i in ix])",
    ),
    "not shifted at the loss": Spelling(
        "targets-misaligned",
        changed((LOSS, "    loss = F.cross_entropy(logits.view(-1, V), x.view(-1))\n")),
        "    loss = F.cross_entropy(logits[:, :-1].reshape(-1, V), x[:, 1:].reshape(-1))",
    ),
    "the same slice twice": Spelling(
        "targets-misaligned",
        changed(
            (
                "    x = torch.stack([text[i : i + T] for i in ix])\n" + TARGETS,
                "    rows = torch.stack([text[i : i + T + 1] for i in ix])\n"
                "    x, y = rows[:, :-1], rows[:, :-1]\n",
            ),
            ("y.view(-1))", "y.reshape(-1))"),
            ("len(text) - T,", "len(text) - T - 1,"),
        ),
        "    x, y = rows[:, :-1], rows[:, 1:]",
    ),
    "shifted again at the loss": Spelling(
        "targets-misaligned",
        changed(
            (
                LOSS,
                "    ahead = logits[:, :-1, :].contiguous()\n"
                "    answers = y[:, 1:].contiguous()\n"
                "    loss = F.cross_entropy(ahead.view(-1, V), answers.view(-1))\n",
            )
        ),
        "    ahead = logits.contiguous()",
    ),
    "two places on in a dataset": Spelling(
        "targets-misaligned",
        changed(
            (
                "model = Model()\n",
                """\
class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return len(text) - T - 1

    def __getitem__(self, i):
        return {"ids": text[i : i + T], "labels": text[i + 2 : i + T + 2]}


model = Model()
loader = torch.utils.data.DataLoader(Windows(), batch_size=B, shuffle=True)
""",
            ),
            (
                "for step in range(STEPS):\n    x, y = get_batch()\n    logits = model(x)\n",
                "for step, batch in zip(range(STEPS), loader):\n    logits = model(batch['ids'])\n",
            ),
            ("y.view(-1))", "batch['labels'].view(-1))"),
        ),
        """        return {"ids": text[i : i + T], "labels": text[i + 1 : i + T + 1]}""",
    ),
    "two places on in a counted loop": Spelling(
        "targets-misaligned",
        changed(
            (
                "model = Model()\n",
                """\
class Windows(torch.utils.data.Dataset):
    def __len__(self):
        return len(text) - T - 1

    def __getitem__(self, i):
        row = text[i : i + T + 2]
        return row[:-2], row[2:]


model = Model()
loader = torch.utils.data.DataLoader(Windows(), batch_size=B, shuffle=True)
""",
            ),
            (
                "for step in range(STEPS):\n    x, y = get_batch()\n",
                "for step, (x, y) in enumerate(loader):\n    if step == STEPS:\n        break\n",
            ),
        ),
        "        return row[:-2], row[1:-1]",
    ),
    "nothing is left for the last row": Spelling(
        "targets-misaligned",
        changed(
            (TARGETS, "    y = torch.stack([text[i : i + T] for i in ix])\n"),
            ("len(text) - T,", "len(text) - T + 1,"),
        ),
        None,
    ),
    "rolled, which slices do not say": Spelling(
        "targets-misaligned",
        changed((TARGETS, "    y = x.roll(0, 1).clone()\n")),
        None,
    ),
}

mask = {
    "none in a fused call": Spelling(
        "causal-mask-leak",
        changed((BY_HAND, "        y = F.scaled_dot_product_attention(q, k, v)\n")),
        "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
    "none by hand": Spelling(
        "causal-mask-leak",
        changed((MASKED, "")),
        "        att = att.masked_fill(torch.triu(torch.ones(att.shape[-2:], dtype=torch.bool, "
        'device=att.device), diagonal=1), float("-inf"))',
    ),
    "zeros and ones added": Spelling(
        "causal-mask-leak",
        changed((MASKED, "        att = att + self.mask[:T, :T]\n")),
        '        att = att.masked_fill(self.mask[:T, :T] == 0, float("-inf"))',
    ),
    "the past hidden": Spelling(
        "causal-mask-leak",
        changed((BUFFER, BUFFER.replace("tril", "triu"))),
        '        self.register_buffer("mask", torch.tril(torch.ones(T, T)))',
    ),
    "one place too late": Spelling(
        "causal-mask-leak",
        changed((BUFFER, BUFFER.replace("torch.ones(T, T)", "torch.ones(T, T), diagonal=1"))),
        '        self.register_buffer("mask", torch.tril(torch.ones(T, T)))',
    ),
    "bools turned round in a fused call": Spelling(
        "causal-mask-leak",
        changed(
            (
                BY_HAND,
                "        hide = torch.triu(torch.ones(T, T, dtype=torch.bool))\n"
                "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=hide)\n",
            )
        ),
        "        hide = torch.tril(torch.ones(T, T, dtype=torch.bool))",
    ),
    "zeros and ones in torch's module": Spelling(
        "causal-mask-leak",
        changed(
            (
                "self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)",
                "self.attend, self.out = nn.MultiheadAttention(D, 2, batch_first=True), nn.Linear(D, D)",
            ),
            ("        q, k, v = self.qkv(x).split(D, dim=2)\n", ""),
            (BY_HAND, "        y, _ = self.attend(x, x, x, attn_mask=self.mask[:T, :T])\n"),
        ),
        "        y, _ = self.attend(x, x, x, attn_mask=self.mask[:T, :T] == 0)",
    ),
    "none in torch's encoder": Spelling(
        "causal-mask-leak",
        changed(
            (
                "self.attention, self.norm = Attention(), nn.LayerNorm(D)",
                "layer = nn.TransformerEncoderLayer(D, 2, 32, 0.0, batch_first=True)\n"
                "        self.encoder = nn.TransformerEncoder(layer, 2)",
            ),
            ("h = h + self.attention(self.norm(h))", "h = self.encoder(h)"),
        ),
        "        h = self.encoder(h, mask=torch.triu(torch.ones(h.size(1), h.size(1), dtype=torch.bool, "
        "device=h.device), diagonal=1))",
    ),
    "a mask from elsewhere": Spelling(
        "causal-mask-leak",
        changed(
            (
                BY_HAND,
                "        seen = torch.rand(T, T) > -1\n"
                "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)\n",
            )
        ),
        None,
    ),
    "a soft penalty": Spelling(
        "causal-mask-leak",
        changed((MASKED, "        att = att - 3.0 * (1 - self.mask[:T, :T])\n")),
        None,
    ),
}

softmax = {
    "by name": Spelling(
        "double-softmax",
        changed(
            (LOSS, "    probs = F.softmax(logits, dim=-1)\n" + LOSS.replace("logits.", "probs."))
        ),
        "    probs = logits",
    ),
    "in the model": Spelling(
        "double-softmax",
        changed(("        return logits\n", "        return torch.softmax(logits, dim=-1)\n")),
        "        return logits",
    ),
    "a module of its own": Spelling(
        "double-softmax",
        changed(
            (
                "        self.head = nn.Linear(D, V)\n",
                "        self.head = nn.Linear(D, V)\n        self.normalise = nn.Softmax(dim=-1)\n",
            ),
            ("logits = self.head(h)", "logits = self.normalise(self.head(h))"),
            ("model = Model()\n", "model = Model()\ncriterion = nn.CrossEntropyLoss()\n"),
            ("F.cross_entropy(", "criterion("),
        ),
        "        logits = self.head(h)",
    ),
    "the last layer of a sequence": Spelling(
        "double-softmax",
        changed(
            (
                "        self.head = nn.Linear(D, V)\n",
                "        self.head = nn.Sequential(nn.Linear(D, V), nn.Softmax(dim=-1))\n",
            )
        ),
        "        self.head = nn.Sequential(nn.Linear(D, V))",
    ),
    "in the call": Spelling(
        "double-softmax",
        changed(("logits.view(-1, V), y", "logits.view(-1, V).softmax(-1), y")),
        "    loss = F.cross_entropy(logits.view(-1, V), y.view(-1))",
    ),
    "without its logarithm": Spelling(
        "double-softmax",
        changed(
            (
                LOSS,
                "    loss = F.nll_loss(F.softmax(logits.view(-1, V), dim=-1), y.view(-1))\n",
            )
        ),
        "    loss = F.nll_loss(F.log_softmax(logits.view(-1, V), dim=-1), y.view(-1))",
    ),
    "read by others too": Spelling(
        "double-softmax",
        changed(
            (
                LOSS,
                "    probs = F.softmax(logits, dim=-1)\n"
                + LOSS.replace("logits.", "probs.")
                + "    drawn = torch.multinomial(probs[0].detach(), 1)\n",
            )
        ),
        None,
    ),
    "the model writes text": Spelling(
        "double-softmax",
        changed(
            ("        return logits\n", "        return torch.softmax(logits, dim=-1)\n"),
            (
                "    optimizer.zero_grad()",
                "    drawn = torch.multinomial(model(x)[0].detach(), 1)\n    optimizer.zero_grad()",
            ),
        ),
        None,
    ),
}

scale = {
    "summed": Spelling(
        "loss-scale-wrong",
        changed(
            ("y.view(-1))", 'y.view(-1), reduction="sum")'),
            (
                "torch.optim.AdamW(model.parameters(), lr=1e-2)",
                "torch.optim.SGD(model.parameters(), lr=0.5)",
            ),
        ),
        '    loss = F.cross_entropy(logits.view(-1, V), y.view(-1), reduction="mean")',
    ),
    "summed by a module": Spelling(
        "loss-scale-wrong",
        changed(
            (
                "model = Model()\n",
                "model = Model()\ncriterion = nn.CrossEntropyLoss(reduction='sum')\n",
            ),
            ("F.cross_entropy(", "criterion("),
            (
                "torch.optim.AdamW(model.parameters(), lr=1e-2)",
                "torch.optim.SGD(model.parameters(), lr=0.5)",
            ),
        ),
        "criterion = nn.CrossEntropyLoss(reduction='mean')",
    ),
    "summed by hand": Spelling(
        "loss-scale-wrong",
        changed(
            (
                LOSS,
                "    each = F.cross_entropy(logits.view(-1, V), y.view(-1), reduction='none')\n"
                "    loss = each.sum()\n",
            ),
            (
                "torch.optim.AdamW(model.parameters(), lr=1e-2)",
                "torch.optim.SGD(model.parameters(), lr=0.5)",
            ),
        ),
        "    loss = each.mean()",
    ),
    "micro-batches in a loop": Spelling(
        "loss-scale-wrong",
        changed(
            ("AdamW(model.parameters(), lr=1e-2)", "SGD(model.parameters(), lr=0.1)"),
            (
                LOOP[LOOP.index("for step") :],
                """\
MICRO = 4
for step in range(STEPS):
    optimizer.zero_grad()
    for _ in range(MICRO):
        x, y = get_batch()
        loss = F.cross_entropy(model(x).view(-1, V), y.view(-1))
        loss.backward()
    optimizer.step()
""",
            ),
        ),
        "        (loss / MICRO).backward()",
    ),
    "micro-batches counted": Spelling(
        "loss-scale-wrong",
        changed(
            ("AdamW(model.parameters(), lr=1e-2)", "SGD(model.parameters(), lr=0.1)"),
            ("range(STEPS)", "range(4 * STEPS)"),
            (
                ZERO + BACKWARD + STEP,
                """\
    loss.backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
            ),
        ),
        "    (loss / 4).backward()",
    ),
    "a sum with a weight": Spelling(
        "loss-scale-wrong",
        changed(
            (
                LOSS,
                "    keep = torch.rand(B * T) < 0.5\n"
                "    each = F.cross_entropy(logits.view(-1, V), y.view(-1), reduction='none')\n"
                "    loss = (each * keep).sum()\n",
            ),
            (
                "torch.optim.AdamW(model.parameters(), lr=1e-2)",
                "torch.optim.SGD(model.parameters(), lr=0.5)",
            ),
        ),
        None,
    ),
}

params = {
    "the head is left out": Spelling(
        "params-not-in-optimizer",
        changed(("AdamW(model.parameters()", "AdamW(model.attention.parameters()")),
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)",
    ),
    "filtered by name": Spelling(
        "params-not-in-optimizer",
        changed(
            (
                MAKE,
                "chosen = [p for name, p in model.named_parameters() if 'head' not in name]\n"
                "optimizer = torch.optim.AdamW(chosen, lr=1e-2)\n",
            )
        ),
        "chosen = [p for name, p in model.named_parameters()]",
    ),
    "made too early": Spelling(
        "params-not-in-optimizer",
        changed((MAKE, MAKE + "model.head = nn.Linear(D, V)\n")),
        "model.head = nn.Linear(D, V)",  # above the optimizer, that is
    ),
    "in a plain list": Spelling(
        "params-not-in-optimizer",
        changed(
            (
                "self.attention, self.norm = Attention(), nn.LayerNorm(D)",
                "self.layers = [Attention() for _ in range(2)]\n        self.norm = nn.LayerNorm(D)",
            ),
            (
                "        h = h + self.attention(self.norm(h))\n",
                "        for layer in self.layers:\n            h = h + layer(self.norm(h))\n",
            ),
        ),
        "        self.layers = nn.ModuleList([Attention() for _ in range(2)])",
    ),
    "one of several modules": Spelling(
        "params-not-in-optimizer",
        changed(
            (
                "model = Model()\n" + MAKE,
                "body, last = Model(), nn.Linear(V, V)\n"
                "optimizer = torch.optim.AdamW(body.parameters(), lr=1e-2)\n",
            ),
            ("logits = model(x)", "logits = last(body(x))"),
        ),
        None,
    ),
    "groups that forget some": Spelling(
        "params-not-in-optimizer",
        changed(
            (
                MAKE,
                "groups = [\n"
                "    {'params': [p for p in model.parameters() if p.ndim > 2], 'weight_decay': 0.1},\n"
                "    {'params': [p for p in model.parameters() if p.ndim < 2], 'weight_decay': 0.0},\n"
                "]\n"
                "optimizer = torch.optim.AdamW(groups, lr=1e-2)\n",
            )
        ),
        None,
    ),
}

ALL: dict[str, Spelling] = {
    f"{fault}: {name}": one
    for fault, several in (
        ("zero_grad", zero_grad),
        ("shift", shift),
        ("mask", mask),
        ("softmax", softmax),
        ("scale", scale),
        ("params", params),
    )
    for name, one in several.items()
}
