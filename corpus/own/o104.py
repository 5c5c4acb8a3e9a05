import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from pydoc_data.topics import topics

torch.set_num_threads(1)


def load(block):
    text = "\n".join(topics[k] for k in sorted(topics))
    data = torch.tensor(list(text.encode("utf-8")), dtype=torch.long)
    n = int(0.9 * len(data))
    return data[:n], data[n:]


def draw(data, rows, block):
    start = torch.randint(0, data.numel() - block, (rows,))
    return torch.stack([data[s:s + block] for s in start])


@torch.no_grad()
def evaluate(model, data, args):
    torch.manual_seed(args.seed)
    model.eval()
    losses = []
    for _ in range(args.eval_batches):
        ids = draw(data, args.rows, args.block)
        losses.append(model(input_ids=ids, labels=ids).loss)
    model.train()
    return torch.stack(losses).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=42)
    ap.add_argument("--rows", type=int, default=8)
    ap.add_argument("--block", type=int, default=64)
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--eval-every", type=int, default=4)
    ap.add_argument("--eval-batches", type=int, default=2)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    train, valid = load(args.block)
    config = GPT2Config(vocab_size=256, n_positions=args.block, n_embd=64, n_layer=2, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    best = float("inf")
    for step in range(args.steps):
        if step % args.eval_every == 0:
            val = evaluate(model, valid, args)
            best = min(best, val)
        ids = draw(train, args.rows, args.block)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step} train {loss.item():.4f} val loss {val:.4f} best {best:.4f}")


if __name__ == "__main__":
    main()
