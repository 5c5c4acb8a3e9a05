"""Counts what a process has: threads, children, exit of threads, loggers, and functions that torch would miss."""

from __future__ import annotations

import gc
import locale
import logging
import multiprocessing
import threading

import torch
from toy import batch, finish, loss_of, seed, tiny_model


def describe(when: str) -> None:
    names = sorted(thread.name for thread in threading.enumerate())
    print(when, threading.active_count(), names, multiprocessing.active_children())
    print(logging.getLogger().handlers, logging.root.level, gc.isenabled(), gc.get_threshold())
    print(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads())
    print(
        locale.setlocale(locale.LC_NUMERIC), threading.current_thread() is threading.main_thread()
    )


seed()
describe("before")
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), threading.active_count())
describe("after")
finish(model, optimizer)
