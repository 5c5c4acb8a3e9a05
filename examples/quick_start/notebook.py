import torch
from plain import Model, train

import traindoctor

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
with traindoctor.watch(model, optimizer) as doctor:
    train(model, optimizer)
print(doctor.diagnosis.verdict, doctor.diagnosis.causes[0].finding.cause)
doctor.report()  # the last line of a cell: the whole report
