import warnings

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM

warnings.filterwarnings("ignore")
PAD, CLS, MASK, OFFSET = 0, 1, 2, 3
AMINO = 20


class Proteins(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        world = torch.Generator().manual_seed(3)
        families = torch.randint(AMINO, (4, 24), generator=world)
        self.items = []
        for _ in range(count):
            fam = families[torch.randint(4, (1,), generator=g)].squeeze(0)
            lo = int(torch.randint(0, 6, (1,), generator=g))
            hi = int(torch.randint(16, 25, (1,), generator=g))
            seq = fam[lo:hi].clone()
            mutate = torch.rand(len(seq), generator=g) < 0.1
            seq[mutate] = torch.randint(AMINO, (int(mutate.sum()),), generator=g)
            self.items.append(torch.cat([torch.tensor([CLS]), seq + OFFSET]))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class MaskingCollator:
    def __init__(self, share=0.15, seed=0):
        self.share = share
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, rows):
        rows = sorted(rows, key=len)
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        labels = ids.clone()
        chosen = (torch.rand(ids.shape, generator=self.gen) < self.share) & (ids >= OFFSET)
        labels[~chosen] = -100
        r = torch.rand(ids.shape, generator=self.gen)
        inputs = ids.clone()
        inputs[chosen & (r < 0.8)] = MASK
        swap = chosen & (r > 0.9)
        inputs[swap] = torch.randint(OFFSET, OFFSET + AMINO, (int(swap.sum()),), generator=self.gen)
        return {"input_ids": inputs, "attention_mask": (ids != PAD).long(), "labels": labels}


def main():
    torch.manual_seed(33)
    config = BertConfig(vocab_size=AMINO + OFFSET, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=32, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, initializer_range=0.05, pad_token_id=PAD)
    model = BertForMaskedLM(config)
    train = DataLoader(Proteins(3000, 1), batch_size=32, shuffle=True, collate_fn=MaskingCollator(seed=1))
    valid = DataLoader(Proteins(200, 2), batch_size=200, collate_fn=MaskingCollator(seed=2))
    held = next(iter(valid))
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, 3e-3, total_steps=3 * len(train), pct_start=0.1)
    step = 0
    for epoch in range(3):
        for batch in train:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            sched.step()
            optim.zero_grad()
            step += 1
            if step % 25 == 0:
                print({"step": step, "loss": round(loss.item(), 4), "epoch": epoch})
        model.eval()
        with torch.no_grad():
            out = model(**held)
            sel = held["labels"] != -100
            acc = (out.logits.argmax(-1)[sel] == held["labels"][sel]).float().mean().item()
        model.train()
        print({"epoch": epoch, "eval_loss": round(out.loss.item(), 4), "masked_accuracy": round(acc, 4)})


if __name__ == "__main__":
    main()
