"""Rows of a batch that join parts of different examples, found by value; and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from traindoctor.capture.watch import Watch
from traindoctor.checks.base import Finding
from traindoctor.checks.data.labels_unrelated import labels_unrelated
from traindoctor.probes.batches import Batches
from traindoctor.probes.collated import Collated, moved_share
from traindoctor.record import open_record


def examples(count: int = 24) -> list[tuple[Tensor, int, np.ndarray]]:
    """Tokens of many lengths, one of five labels, some features."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *of: torch.randint(*of, (1,), generator=generator).item()  # noqa: E731
    return [
        (
            torch.randint(1, 50, (draw(3, 20),), generator=generator),
            draw(5),
            torch.randn(4, generator=generator).numpy(),
        )
        for _ in range(count)
    ]


def padded(tokens: list[Tensor]) -> Tensor:
    return pad_sequence(tokens, batch_first=True)


def tensors(of: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    tokens, labels, features = zip(*of)
    return padded(list(tokens)), torch.tensor(labels), torch.tensor(np.stack(features))


def in_order(of: list[Any]) -> Any:
    return tensors(of)


def all_sorted(of: list[Any]) -> Any:
    of.sort(key=lambda one: len(one[0]), reverse=True)  # the loader's own list
    return tensors(of)


def sorted_under_a_name(of: list[Any]) -> Any:
    tokens, labels, features = all_sorted(of)
    lengths = (tokens != 0).sum(1)
    return {"ids": tokens, "lengths": lengths, "y": labels, "nested": [features]}


def with_negatives(of: list[Any]) -> Any:
    tokens, labels, features = tensors(of)
    return tokens, labels, features, features[torch.randperm(len(of))]


def mixed_up(of: list[Any]) -> Any:
    _, labels, features = tensors(of)
    other = torch.randperm(len(of))
    return features, features[other], labels, labels[other]


def put_back_later(of: list[Any]) -> Any:
    order = torch.tensor([len(one[0]) for one in of]).argsort(descending=True)
    tokens, labels, features = tensors(of)
    return tokens[order], labels, features, order


def changed(of: list[Any]) -> Any:
    """A shifted label and features with noise are no copies of what was given."""
    tokens, labels, features = all_sorted(of)
    return tokens, labels + 100, features + torch.randn_like(features)


def tokens_alone(of: list[Any]) -> Any:
    tokens, labels, features = tensors(of)
    order = sorted(range(len(of)), key=lambda i: -len(of[i][0]))
    return tokens[order], labels, features


def labels_alone(of: list[Any]) -> Any:
    tokens, _, features = all_sorted(list(of))
    return tokens, torch.tensor([one[1] for one in of]), features


def padded_on_the_left(of: list[Any]) -> Any:
    tokens, labels, _ = tensors(of)
    longest = sorted((one[0] for one in of), key=len)
    left = torch.stack([torch.cat([t.new_zeros(tokens.shape[1] - len(t)), t]) for t in longest])
    return left, labels


@pytest.mark.parametrize(
    "join",
    [in_order, all_sorted, sorted_under_a_name, with_negatives, mixed_up, put_back_later, changed],
)
def test_sound_batches(join: Callable[[list[Any]], Any]) -> None:
    given = examples()
    assert moved_share(list(given), join(given)) == 0.0


@pytest.mark.parametrize("join", [tokens_alone, labels_alone, padded_on_the_left])
def test_parts_in_orders_of_their_own(join: Callable[[list[Any]], Any]) -> None:
    given = examples()
    assert moved_share(list(given), join(given)) > 0.5


@pytest.mark.parametrize(("join", "dealt"), [(all_sorted, 0), (labels_alone, 6)])
def test_a_loader_is_heard_and_its_function_put_back(
    tmp_path: Path, join: Callable[[list[Any]], Any], dealt: int
) -> None:
    data = examples(200)
    net = nn.Linear(4, 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    watch = Watch(tmp_path, probes=[Batches(), Collated()])
    watch.attach()
    try:
        loader = iter(DataLoader(data, batch_size=16, collate_fn=join))  # type: ignore[arg-type]
        for _, labels, features in loader:
            nn.functional.cross_entropy(net(features.float()), labels).backward()
            optimizer.step()
        assert loader._dataset_fetcher.collate_fn is join
        assert watch.patient.rows_joined == {16}
    finally:
        watch.close("done")
    record = open_record(watch.out)
    assert (record.facts["batch.collated"]["batches"], record.facts["batch.collated"]["dealt"]) == (
        6,
        dealt,
    )
    assert isinstance(labels_unrelated(record), Finding) == bool(dealt)


def test_what_a_loaders_function_raises_is_the_scripts(tmp_path: Path) -> None:
    def fails(of: list[Any]) -> Any:
        raise KeyError("mine")

    watch = Watch(tmp_path, probes=[Collated()])
    watch.attach()
    try:
        with pytest.raises(KeyError, match="mine"):
            next(iter(DataLoader(examples(), batch_size=8, collate_fn=fails)))  # type: ignore[arg-type]
    finally:
        watch.close("done")
