import os
import tempfile
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, get_constant_schedule_with_warmup, logging

warnings.filterwarnings("ignore")
logging.set_verbosity_error()
logging.disable_progress_bar()

WIDTH = 32


def species_table(seed, base=None, share=0.0):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(16, 4, generator=g).pow(6)
    t = t / t.sum(-1, keepdim=True)
    return t if base is None else share * base + (1 - share) * t


def genome(count, table, seed):
    g = torch.Generator().manual_seed(seed)
    seq = torch.randint(0, 4, (count, WIDTH), generator=g)
    for t in range(2, WIDTH):
        ctx = seq[:, t - 2] * 4 + seq[:, t - 1]
        seq[:, t] = torch.multinomial(table[ctx], 1, generator=g).squeeze(1)
    return TensorDataset(torch.cat([torch.full((count, 1), 4), seq], dim=1))


def entropy(table):
    pi = torch.full((16,), 1 / 16)
    for _ in range(200):
        nxt = torch.zeros(16)
        for c in range(16):
            nxt[(c % 4) * 4:(c % 4) * 4 + 4] += pi[c] * table[c]
        pi = nxt
    return -(pi[:, None] * table * table.clamp_min(1e-12).log()).sum().item()


def collate(rows):
    ids = torch.stack([r[0] for r in rows])
    return {"input_ids": ids, "labels": ids.clone()}


@torch.no_grad()
def evaluate(model, dataset):
    model.eval()
    loss = model(**collate([dataset[i] for i in range(len(dataset))])).loss.item()
    model.train()
    return loss


def train(model, dataset, eval_set, steps, lr, warmup, name):
    loader = DataLoader(dataset, batch_size=24, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = get_constant_schedule_with_warmup(optimizer, warmup)
    print(f"[{name}] before: eval_loss {evaluate(model, eval_set):.4f}")
    step, running = 0, 0.0
    while step < steps:
        for batch in loader:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            running += loss.item()
            if step % 20 == 0:
                print(f"[{name}] step {step} loss {running / 20:.4f} lr {scheduler.get_last_lr()[0]:.1e}")
                running = 0.0
            if step == steps:
                break
    print(f"[{name}] after: eval_loss {evaluate(model, eval_set):.4f}")


def main():
    torch.manual_seed(2024)
    human = species_table(5)
    yeast = species_table(6, base=human, share=0.25)
    config = LlamaConfig(vocab_size=5, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         initializer_range=0.1, tie_word_embeddings=False, use_cache=False,
                         bos_token_id=4, eos_token_id=None, pad_token_id=None)
    with tempfile.TemporaryDirectory() as out:
        model = LlamaForCausalLM(config)
        print(f"entropy human {entropy(human):.4f} yeast {entropy(yeast):.4f}")
        train(model, genome(3000, human, 1), genome(150, human, 2), 100, 3e-3, 10, "pretrain human")
        model.save_pretrained(os.path.join(out, "base"))
        model = LlamaForCausalLM.from_pretrained(os.path.join(out, "base"), dtype=torch.bfloat16)
        train(model, genome(3000, yeast, 3), genome(150, yeast, 4), 140, 6e-5, 5, "adapt yeast")


if __name__ == "__main__":
    main()
