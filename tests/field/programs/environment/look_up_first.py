"""torch is looked up before it is imported, as transformers and datasets do; then a failed import, then a lazy one."""

from __future__ import annotations

import importlib
import importlib.util
import sys

print(importlib.util.find_spec("torch") is not None, "torch" in sys.modules)
print(importlib.util.find_spec("torch").origin.rpartition("site-packages")[2])
print(importlib.util.find_spec("no_such_package_at_all"))
try:
    importlib.import_module("torch_that_is_not_there")
except ModuleNotFoundError as error:
    print(error)

torch = importlib.import_module("torch")
from toy import finish, fit, seed, tiny_model  # noqa: E402

print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=15)
importlib.import_module("torch.optim")
print(sys.modules["torch"] is torch)
finish(model, optimizer)
