import copy
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(9)
torch.manual_seed(9)
PAD, BOS, SEP, EOS = 0, 1, 2, 3
TOPICS, FILLER, WORDS = 10, 20, 30
TOPIC0, FILL0, WORD0 = 4, 14, 34
VOCAB = WORD0 + WORDS
MAX_LEN = 24
IGNORE = -100


def make_prompt():
    topic = random.randrange(TOPICS)
    n = min(int(random.expovariate(0.25)) + 2, 30)
    return topic, [BOS, TOPIC0 + topic] + [FILL0 + random.randrange(FILLER) for _ in range(n)] + [SEP]


def make_response(topic, helpful):
    pool = [WORD0 + (topic * 3 + k) % WORDS for k in range(6)]
    return [random.choice(pool[:3] if random.random() < (0.7 if helpful else 0.3) else pool[3:])
            for _ in range(random.randint(4, 8))] + [EOS]


def tokenize(prompt, response):
    ids = (prompt + response)[:MAX_LEN]
    labels = ([IGNORE] * len(prompt) + response)[:MAX_LEN]
    fill = MAX_LEN - len(ids)
    return ids + [PAD] * fill, labels + [IGNORE] * fill


class PairDataset(torch.utils.data.Dataset):
    def __init__(self, n):
        self.rows = []
        for _ in range(n):
            topic, prompt = make_prompt()
            self.rows.append(tokenize(prompt, make_response(topic, True)) + tokenize(prompt, make_response(topic, False)))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return tuple(torch.tensor(c) for c in self.rows[i])


class Policy(nn.Module):
    def __init__(self, d=48, layers=2):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.pos = nn.Parameter(torch.randn(MAX_LEN, d) * 0.02)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        return self.head(self.norm(self.blocks(self.emb(ids) + self.pos[:t], mask=mask)))


def get_batch_logps(logits, labels):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1]
    loss_mask = labels != IGNORE
    labels[~loss_mask] = 0
    per_token = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (per_token * loss_mask).sum(-1) / loss_mask.sum(-1).clamp(min=1)


def dpo_margin(policy, reference, batch):
    c_ids, c_lab, r_ids, r_lab = batch
    ids, labels = torch.cat([c_ids, r_ids]), torch.cat([c_lab, r_lab])
    with torch.no_grad():
        ref_c, ref_r = get_batch_logps(reference(ids), labels).chunk(2)
    pol_c, pol_r = get_batch_logps(policy(ids), labels).chunk(2)
    return (pol_c - ref_c) - (pol_r - ref_r)


train_set, eval_set = PairDataset(1600), PairDataset(300)
loader = torch.utils.data.DataLoader(train_set, batch_size=16, shuffle=True)

policy = Policy()
opt = torch.optim.AdamW(policy.parameters(), lr=2e-3)
step = 0
for epoch in range(2):
    for c_ids, c_lab, r_ids, r_lab in loader:
        ids, labels = torch.cat([c_ids, r_ids]), torch.cat([c_lab, r_lab])
        loss = F.cross_entropy(policy(ids)[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORE)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"sft {step} loss {loss.item():.4f}")
        step += 1

reference = copy.deepcopy(policy).eval().requires_grad_(False)
BETA = 2.0
opt = torch.optim.AdamW(policy.parameters(), lr=2e-4, weight_decay=0.0)
step = 0
for epoch in range(2):
    policy.train()
    for batch in loader:
        margin = dpo_margin(policy, reference, batch)
        loss = -F.logsigmoid(BETA * margin).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        if step % 25 == 0:
            print(f"dpo {step} loss {loss.item():.4f} margin {margin.mean().item():.3f}")
        step += 1
    policy.eval()
    with torch.no_grad():
        held = torch.utils.data.default_collate([eval_set[i] for i in range(len(eval_set))])
        margin = dpo_margin(policy, reference, held)
        print(f"epoch {epoch} held-out loss {-F.logsigmoid(BETA * margin).mean().item():.4f} "
              f"reward accuracy {(margin > 0).float().mean().item():.3f}")
