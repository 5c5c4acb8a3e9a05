import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast

torch.manual_seed(70)
N_TOKENS, LENGTH, N_CLASSES = 120, 24, 6


def reviews(n):
    y = torch.randint(N_CLASSES, (n,))
    x = torch.randint(30, N_TOKENS, (n, LENGTH))
    cue = y[:, None] * 5 + torch.randint(5, (n, 4))
    spots = torch.rand(n, LENGTH).argsort(1)[:, :4]
    return x.scatter(1, spots, cue), y


class ReviewClassifier(nn.Module):
    def __init__(self, d_model=64, nhead=4, num_layers=2):
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, d_model)
        self.position = nn.Parameter(torch.zeros(1, LENGTH, d_model))
        encoder_layer = nn.TransformerEncoderLayer(d_model, nhead, 128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, num_layers)
        self.classifier = nn.Sequential(nn.Linear(d_model, d_model), nn.Tanh(), nn.Linear(d_model, N_CLASSES))

    def forward(self, tokens):
        x = self.encoder(self.embedding(tokens) + self.position)
        return self.classifier(x.mean(dim=1))


model = ReviewClassifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scaler = GradScaler("cpu")

model.train()
for step in range(1, 161):
    tokens, target = reviews(32)
    optimizer.zero_grad(set_to_none=True)
    with autocast("cpu", dtype=torch.bfloat16):
        output = model(tokens)
        loss = criterion(output.float(), target)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    if step == 1 or step % 20 == 0:
        accuracy = (output.argmax(1) == target).float().mean().item()
        print(f"Step [{step}/160], Loss: {loss.item():.4f}, Acc: {accuracy:.3f}, Scale: {scaler.get_scale():.0f}")
