"""A module of a package started with -m, with relative imports and options that look like a watcher's."""

from __future__ import annotations

import argparse
import os
import sys

import torch
from toy import finish, fit, seed, tiny_model

from .. import __doc__ as whole
from . import __doc__ as part

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--out", default="x")
    parser.add_argument("-m", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--after")
    options = parser.parse_args()
    print(options, os.path.basename(sys.argv[0]), sys.path[0] == os.getcwd())
    print(__package__, __spec__.name, part, whole)
    seed()
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    fit(model, optimizer)
    finish(model, optimizer)
