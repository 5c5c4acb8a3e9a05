import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import BertConfig, BertForMaskedLM
from pydoc_data.topics import topics

torch.set_num_threads(1)

PEAK, FLOOR, WARMUP, STEPS = 2e-3, 1e-5, 20, 160
CTX, ROWS = 48, 16


def lr_at(step):
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    left = (STEPS - step) / (STEPS - WARMUP)
    return max(FLOOR, PEAK * left)


def corrupt(ids, mask_id, vocab, p=0.15):
    labels = ids.clone()
    chosen = torch.rand(ids.shape) < p
    labels[~chosen] = -100
    roll = torch.rand(ids.shape)
    ids = ids.clone()
    ids[chosen & (roll < 0.8)] = mask_id
    swap = chosen & (roll >= 0.8) & (roll < 0.9)
    ids[swap] = torch.randint(vocab, ids.shape)[swap]
    return ids, labels


def main():
    torch.manual_seed(27)
    text = "".join(topics[k] for k in sorted(topics)).lower()
    text = "".join(c for c in text if c.isalpha() or c in " \n.,_'")
    chars = sorted(set(text))
    lut = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([lut[c] for c in text])
    vocab = len(chars)
    config = BertConfig(
        vocab_size=vocab + 1,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=CTX,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
    )
    model = BertForMaskedLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.01)
    scheduler = LambdaLR(optimizer, lr_lambda=lr_at)
    window = []
    for step in range(STEPS):
        rows = data[torch.randint(len(data) - CTX, (ROWS, 1)) + torch.arange(CTX)]
        ids, labels = corrupt(rows, vocab, vocab)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        window.append(loss.item())
        if step % 20 == 0 or step == STEPS - 1:
            recent = window[-10:]
            print(f"step {step} loss {sum(recent) / len(recent):.4f}")


if __name__ == "__main__":
    main()
