"""Collectives are data: a tape keeps what they returned, a replay hands it out, nothing of ours communicates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.ground import exchange
from traindoctor.ground.collective import OTHERS_FIXED, Collective, Handing
from traindoctor.ground.exchange import Request
from traindoctor.tape.own_share import own_share

# -- one collective ---------------------------------------------------------------------------------


def collective(
    name: str, given: Any, results: Any, *options: Any, rank: int = 0, size: int = 2
) -> Collective:
    given, results = tuple(given), tuple(results)
    request = Request(name, rank, size, given, results, options)
    return Collective(
        name, "MAX" if options else None, rank, size, given, results, own_share(request)
    )


def handed(made: Collective, *given: Tensor) -> list[Tensor]:
    targets = [torch.empty_like(result, dtype=given[0].dtype) for result in made.results]
    made.hand_out(given, targets)
    return targets


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_unchanged_input_gives_the_recorded_bits() -> None:
    own, total = torch.randn(50), torch.randn(50)
    made = collective("allreduce", [own], [total])
    assert torch.equal(handed(made, own)[0], total)
    with_graph = own.clone().requires_grad_()
    assert torch.equal(handed(made, with_graph)[0], total)


def test_a_sum_follows_its_own_part() -> None:
    made = collective("allreduce", [numbers(1, 2)], [numbers(11, 22)])
    assert handed(made, numbers(1.5, 2))[0].tolist() == [11.5, 22]


def test_an_average_follows_by_its_share() -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    made = collective("allreduce", [numbers(1, 2)], [numbers(5, 6)], options)
    assert handed(made, numbers(2, 2))[0].tolist() == [5.5, 6]


def test_the_gradient_of_a_sum_is_that_of_its_own_part() -> None:
    made = collective("allreduce", [numbers(1, 2)], [numbers(11, 22)])
    own = numbers(1, 2).double().requires_grad_()
    target = own * 1
    made.hand_out([target], [target])
    (gradient,) = torch.autograd.grad((target * numbers(3, 4)).sum(), own)
    assert gradient.tolist() == [3, 4]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gather_has_its_own_slot_new(rank: int) -> None:
    parts = [numbers(1, 2), numbers(3, 4)]
    made = collective("allgather", [parts[rank]], parts, rank=rank)
    found = handed(made, numbers(8, 9))
    assert found[rank].tolist() == [8, 9]
    assert torch.equal(found[1 - rank], parts[1 - rank])
    whole = collective("_allgather_base", [parts[rank]], [torch.cat(parts)], rank=rank)
    assert torch.equal(handed(whole, numbers(8, 9))[0], torch.cat(found))


def test_a_scattered_sum_follows_the_part_that_stays_here() -> None:
    made = collective("_reduce_scatter_base", [numbers(1, 2, 3, 4)], [numbers(30, 40)], rank=1)
    assert handed(made, numbers(7, 7, 3.5, 4))[0].tolist() == [30.5, 40]
    listed = collective("reduce_scatter", [numbers(1, 2), numbers(3, 4)], [numbers(30, 40)], rank=1)
    assert handed(listed, numbers(7, 7), numbers(3, 5))[0].tolist() == [30, 41]


def test_all_to_all_with_split_sizes() -> None:
    request_options = ([1, 2], [3, 2])  # rows received from each rank, rows sent to each
    given, result = numbers(1, 2, 3, 4, 5), numbers(9, 4, 5)
    request = Request("alltoall_base", 1, 2, (given,), (result,), request_options)
    made = Collective("alltoall_base", None, 1, 2, (given,), (result,), own_share(request))
    assert handed(made, numbers(0, 0, 0, 6, 7))[0].tolist() == [9, 6, 7]


def test_what_a_broadcast_brings_does_not_depend_on_what_was_there() -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 1
    request = Request("broadcast", 0, 2, (numbers(0),), (numbers(5),), (options,))
    made = Collective("broadcast", None, 0, 2, request.given, request.targets, own_share(request))
    assert handed(made, numbers(3))[0].tolist() == [5]


@pytest.mark.parametrize("reduce", ["MAX", "MIN", "PRODUCT"])
def test_other_reductions_are_refused_with_other_values(reduce: str) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, reduce)
    made = collective("allreduce", [numbers(1, 2)], [numbers(3, 4)], options)
    assert handed(made, numbers(1, 2))[0].tolist() == [3, 4]
    with pytest.raises(ReplayError, match="what the other ranks contributed is not known"):
        handed(made, numbers(1, 2.5))


def test_other_shapes_and_other_gradients_are_refused() -> None:
    made = collective("allreduce", [numbers(1, 2)], [numbers(11, 22)])
    with pytest.raises(ReplayError, match="other shapes"):
        handed(made, numbers(1, 2, 3))
    near, far = numbers(1.01, 2), numbers(2, -1)
    made.hand_out([near], [near], gradient=True)
    with pytest.raises(ReplayError, match="belong to another computation"):
        made.hand_out([far], [far], gradient=True)


def test_handing_repeats_from_the_start_and_refuses_strangers() -> None:
    first = collective("allreduce", [numbers(1)], [numbers(2)])
    second = collective("allreduce", [numbers(1)], [numbers(3)])
    handing, target = Handing([first, second]), numbers(1)
    seen = []
    for _ in range(3):
        handing.hand_out("allreduce", [numbers(1)], [target])
        seen.append(float(target))
    assert seen == [2, 3, 2]
    with pytest.raises(ReplayError, match="did not use here"):
        handing.hand_out("broadcast", [numbers(1)], [target])


def test_methods_are_given_back() -> None:
    before = {name: vars(dist.ProcessGroup)[name] for name in ("allreduce", "barrier")}
    exchange.install()
    exchange.install()
    exchange.uninstall()
    assert vars(dist.ProcessGroup)["allreduce"] is not before["allreduce"]
    exchange.uninstall()
    assert {name: vars(dist.ProcessGroup)[name] for name in before} == before


# -- two ranks --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks measured (two_ranks.py). Whoever waits for a collective fails after a minute."""
    out = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("two_ranks.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(program.parents[1])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"rank-{rank}").read_text()) for rank in (0, 1)]


# case -> collectives on the tape, whether other ranks have a part in the loss, parameters whose gradient they join
CASES = {
    "tensor parallel": (["all_reduce"], True, ["norm.bias", "norm.weight"]),
    "sequence parallel": (
        ["all_gather", "reduce_scatter"],
        True,
        ["down", "norm.bias", "norm.weight", "up"],
    ),
    "checkpointed": (["all_reduce"], True, ["norm.bias", "norm.weight"]),
    "not in a Function": (["all_reduce"], True, []),
    "maximum": (["all_reduce"], True, []),
    "printed": (["all_reduce", "all_gather", "all_gather"], False, []),
    "exchanged": (["send"], False, []),
    "torch.distributed.nn": (["all_reduce"], True, ["0.bias", "0.weight"]),
    "all to all": (["all_to_all_single"], True, ["0.bias", "0.weight"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_replays_alone(ranks: list[dict[str, Any]], case: str, rank: int) -> None:
    ops, conditional, joined = CASES[case]
    found = ranks[rank]["taped"][case]
    assert found["ops"] == ops
    assert found["gaps"] == []
    assert found["faithful"] == 0
    assert found["difference"] == 0
    assert found["conditional"] is conditional
    assert found["joined"] == joined
    assert found["issued"] == 0
    if case == "maximum":
        assert "with MAX" in found["exact"]
    else:
        assert found["exact"] < 1e-6


def test_a_batch_that_was_received_is_data(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["taped"]["received batch"]
        assert (found["faithful"], found["difference"], found["data"]) == (0, 0, 2)
        assert not found["conditional"]


def test_a_loss_that_is_averaged_in_place_is_replayed_as_it_was(
    ranks: list[dict[str, Any]],
) -> None:
    for rank in ranks:
        found = rank["overwritten"]
        assert (found["faithful"], found["difference"], found["issued"]) == (0, 0, 0)
        assert not found["conditional"]


def test_another_batch_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        asked = rank["questions"]
        assert "belong to another batch" in asked["replays"]["other batch"]
        assert asked["replays"]["same batch"] == pytest.approx(asked["loss"], abs=0)
        assert asked["replays"]["other weights"] != asked["loss"]


def test_exams_of_one_rank_say_what_they_hold_fixed(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        exams = rank["questions"]["exams"]
        assert exams["issued"] == 0
        assert exams["tape_gradient"]["difference"] == 0
        assert exams["tape_gradient"]["given"] == OTHERS_FIXED
        # What other ranks sent is in these gradients: a difference of this rank's loss cannot have it.
        assert exams["finite_difference"]["outcome"] == "pass"
        assert exams["finite_difference"]["joined"] == 2
        tests = {f["name"]: f["test"] for f in exams["functions_alone"]["functions"]}
        assert tests["Copy"] == "none"


def test_a_wrong_backward_beside_collectives_is_found(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        (wrong,) = [
            f
            for f in rank["questions"]["wrong"]["functions_alone"]["functions"]
            if f["name"] == "Doubling"
        ]
        assert wrong["factor"] == pytest.approx(2)


def test_nothing_of_ours_communicates(ranks: list[dict[str, Any]]) -> None:
    guards = ranks[0]["guards"]
    assert len(guards["ways"]) == 12
    assert set(guards["ways"].values()) == {"refused"}, guards["ways"]
    assert guards["issued"] == 0


def test_a_step_is_repeated_when_the_group_is_gone(ranks: list[dict[str, Any]]) -> None:
    """Scripts destroy their process group at their end; tests go on after it."""
    assert [rank["afterwards"] for rank in ranks] == [[0.0, False], [0.0, False]]


def test_the_scripts_threads_communicate_on(ranks: list[dict[str, Any]]) -> None:
    assert [rank["thread"] for rank in ranks] == [2.0, 2.0]
