import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(23)

PAD, CLS, MASK, FIRST, V = 0, 1, 2, 3, 27


class AlbertConfig:
    embedding_size = 24
    hidden_size = 64
    num_attention_heads = 4
    intermediate_size = 128
    num_hidden_layers = 3
    num_hidden_groups = 1
    max_position_embeddings = 20


class AlbertLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attention = nn.MultiheadAttention(cfg.hidden_size, cfg.num_attention_heads, batch_first=True)
        self.ln_attn = nn.LayerNorm(cfg.hidden_size)
        self.ffn = nn.Linear(cfg.hidden_size, cfg.intermediate_size)
        self.ffn_output = nn.Linear(cfg.intermediate_size, cfg.hidden_size)
        self.full_layer_layer_norm = nn.LayerNorm(cfg.hidden_size)

    def forward(self, h, pad_mask):
        a = self.attention(h, h, h, key_padding_mask=pad_mask, need_weights=False)[0]
        h = self.ln_attn(h + a)
        return self.full_layer_layer_norm(h + self.ffn_output(F.gelu(self.ffn(h))))


class AlbertForMaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.word_embeddings = nn.Embedding(V, cfg.embedding_size, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(cfg.max_position_embeddings, cfg.embedding_size)
        self.ln_emb = nn.LayerNorm(cfg.embedding_size)
        self.embedding_hidden_mapping_in = nn.Linear(cfg.embedding_size, cfg.hidden_size)
        self.albert_layer_groups = nn.ModuleList([AlbertLayer(cfg) for _ in range(cfg.num_hidden_groups)])
        self.dense = nn.Linear(cfg.hidden_size, cfg.embedding_size)
        self.ln_head = nn.LayerNorm(cfg.embedding_size)
        self.decoder = nn.Linear(cfg.embedding_size, V)
        nn.init.normal_(self.word_embeddings.weight, std=0.1)
        nn.init.normal_(self.position_embeddings.weight, std=0.1)
        self.decoder.weight = self.word_embeddings.weight

    def forward(self, input_ids, attention_mask, labels=None):
        pos = torch.arange(input_ids.shape[1])
        h = self.ln_emb(self.word_embeddings(input_ids) + self.position_embeddings(pos))
        h = self.embedding_hidden_mapping_in(h)
        for i in range(self.cfg.num_hidden_layers):
            group = int(i / (self.cfg.num_hidden_layers / self.cfg.num_hidden_groups))
            h = self.albert_layer_groups[group](h, attention_mask == 0)
        logits = self.decoder(self.ln_head(F.gelu(self.dense(h))))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.view(-1, V), labels.view(-1), ignore_index=-100)
        return loss, logits


def sentences(n):
    length = torch.randint(8, 15, (n,))
    start = torch.randint(0, 24, (n, 1))
    stride = torch.tensor([1, 5])[torch.randint(0, 2, (n,))].unsqueeze(1)
    t = torch.arange(15)
    body = (start + stride * t) % 24 + FIRST
    ids = torch.cat([torch.full((n, 1), CLS), body], dim=1)
    attention_mask = (torch.arange(16) <= length[:, None]).long()
    return ids * attention_mask, attention_mask


def mask_tokens(input_ids, mlm_probability=0.15):
    inputs, labels = input_ids.clone(), input_ids.clone()
    special = input_ids < FIRST
    prob = torch.full(labels.shape, mlm_probability).masked_fill(special, 0.0)
    masked = torch.bernoulli(prob).bool()
    labels[~masked] = -100
    replaced = torch.bernoulli(torch.full(labels.shape, 0.8)).bool() & masked
    inputs[replaced] = MASK
    rand = torch.bernoulli(torch.full(labels.shape, 0.5)).bool() & masked & ~replaced
    inputs[rand] = torch.randint(FIRST, V, labels.shape)[rand]
    return inputs, labels


model = AlbertForMaskedLM(AlbertConfig)
decay = [p for n, p in model.named_parameters() if p.ndim > 1]
rest = [p for n, p in model.named_parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
                              lr=2e-3, betas=(0.9, 0.98), eps=1e-6)
steps, warm = 380, 40
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: (s + 1) / warm if s < warm else math.sqrt(warm / (s + 1)))
model.train()
for step in range(steps):
    ids, attention_mask = sentences(40)
    inputs, labels = mask_tokens(ids)
    loss, _ = model(inputs, attention_mask, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if step % 30 == 0 or step == steps - 1:
        print(f"step {step} mlm loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    ids, attention_mask = sentences(400)
    inputs, labels = mask_tokens(ids)
    _, logits = model(inputs, attention_mask)
    keep = labels != -100
    print(f"masked accuracy {(logits.argmax(-1)[keep] == labels[keep]).float().mean().item():.3f}")
