import random
import torch
from torch import nn
from transformers import BertConfig, BertModel
from transformers.optimization import get_constant_schedule_with_warmup

random.seed(0)
torch.manual_seed(0)

PAD, CLS, SEP = 0, 1, 2
KINDS = 4
Q0 = 3
E0 = Q0 + KINDS
W0 = E0 + KINDS * 6
VOCAB = W0 + 40


def example():
    kind = random.randrange(KINDS)
    others = random.sample([k for k in range(KINDS) if k != kind], 2)
    order = [kind] + others
    random.shuffle(order)
    ids = [CLS, Q0 + kind, W0 + random.randrange(40), SEP]
    s = e = 0
    for k in order:
        ids += [W0 + random.randrange(40) for _ in range(random.randint(3, 8))]
        n = random.randint(1, 3)
        if k == kind:
            s, e = len(ids), len(ids) + n - 1
        ids += [E0 + 6 * k + random.randrange(6) for _ in range(n)]
    ids += [W0 + random.randrange(40) for _ in range(random.randint(2, 6))] + [SEP]
    return ids, s, e


def get_batch(bs):
    ex = [example() for _ in range(bs)]
    L = max(len(x[0]) for x in ex)
    ids = torch.full((bs, L), PAD)
    for i, (x, _, _) in enumerate(ex):
        ids[i, :len(x)] = torch.tensor(x)
    types = torch.zeros_like(ids)
    types[:, 4:] = 1
    return ids, types, (ids != PAD).long(), torch.tensor([x[1] for x in ex]), torch.tensor([x[2] for x in ex])


class SpanReader(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = BertConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                         intermediate_size=256, max_position_embeddings=64,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        self.bert = BertModel(cfg, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(cfg.hidden_size, 2)

    def forward(self, ids, types, mask):
        h = self.bert(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        span = self.qa_outputs(h)
        span = span.masked_fill((types * mask)[..., None] == 0, -1e4)
        start, end = span.unbind(-1)
        return start, end


model = SpanReader()
no_decay = ("bias", "LayerNorm.weight")
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1.5e-3)
scheduler = get_constant_schedule_with_warmup(optimizer, 60)
criterion = nn.CrossEntropyLoss()

dev = get_batch(200)
TOTAL = 400
for it in range(1, TOTAL + 1):
    ids, types, mask, s, e = get_batch(32)
    start, end = model(ids, types, mask)
    loss = (criterion(start, s) + criterion(end, e)) / 2
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if it % 25 == 0:
        print("iter", it, "loss", round(loss.item(), 4), flush=True)
    if it % 100 == 0:
        model.eval()
        with torch.no_grad():
            a, b = model(*dev[:3])
            em = ((a.argmax(-1) == dev[3]) & (b.argmax(-1) == dev[4])).float().mean().item()
        model.train()
        print("      exact match", round(em, 3), flush=True)
        optimizer.zero_grad()
