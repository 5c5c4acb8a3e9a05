from pydoc_data.topics import topics

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


class TopicBytes(Dataset):
    def __init__(self, length):
        data = "".join(topics.values()).encode("ascii", "replace")
        self.data = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
        self.length = length

    def __len__(self):
        return len(self.data) // self.length

    def __getitem__(self, i):
        return self.data[i * self.length:(i + 1) * self.length]


def main():
    torch.manual_seed(64)
    per_device, accumulate, updates = 4, 6, 90
    loader = DataLoader(TopicBytes(48), batch_size=per_device, shuffle=True, drop_last=True)
    config = GPT2Config(vocab_size=128, n_positions=48, n_embd=64, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=updates)
    model.train()
    update, shown = 0, 0.0
    for i, batch in enumerate(loader, start=1):
        loss = model(input_ids=batch, labels=batch).loss / accumulate
        loss.backward()
        shown += loss.item()
        if i % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            update += 1
            if update == 1 or update % 6 == 0:
                print(f"update {update} loss {shown:.4f}")
            shown = 0.0
        scheduler.step()
        if update == updates:
            break


main()
