"""Lightning. The loss function is given probabilities and takes their softmax again."""

import lightning as L
import torch
import torch.nn.functional as F
from plain import Model
from torch.utils.data import DataLoader, TensorDataset


class Language(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        (ids,) = batch
        probabilities = self.model(ids[:, :-1]).softmax(-1)
        return F.cross_entropy(probabilities.flatten(0, 1), ids[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


torch.manual_seed(0)
text = torch.randint(1, 5, (20000,)).cumsum(0) % 32
loader = DataLoader(TensorDataset(text.unfold(0, 17, 17)), batch_size=16, shuffle=True)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", barebones=True)
trainer.fit(Language(), loader)
