"""What a script sees of itself: its arguments, names, path, standard input, folder, and raw file descriptors."""

from __future__ import annotations

import inspect
import os
import sys

import torch
from toy import finish, fit, seed, tiny_model

print([os.path.basename(sys.argv[0]), *sys.argv[1:]], __name__, __spec__, __package__)
print(__file__ == os.path.abspath(sys.argv[0]), sorted(k for k in globals() if k[:2] == "__"))
print(os.path.basename(sys.path[0]), sys.flags.optimize, sys.flags.dev_mode)
print("input", repr(sys.stdin.read()))
os.mkdir("below")
os.chdir("below")
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=6)
sys.stdout.flush()
os.write(1, b"straight to standard output\n")
os.write(2, b"straight to standard error\n")
code = compile("fit(model, optimizer, 6, 'cell')", "<ipython-input-1>", "exec")
exec(code, globals())
with open("relative.txt", "w") as file:
    file.write(os.path.basename(os.getcwd()))
print(inspect.getsource(fit)[:8], sys.modules["__main__"].model is model)
print(sys.stdout.encoding, sys.stdout.isatty(), sys.stderr.line_buffering)
finish(model, optimizer)
