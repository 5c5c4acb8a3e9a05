"""The requests of the page. Each gives JSON; a fault of a record is an answer, never a crash."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from traindoctor.compare.runs import compare_runs
from traindoctor.dashboard.pyramid import Pyramid
from traindoctor.dashboard.rank_map import RankMap
from traindoctor.dashboard.store import RunStore, UnknownRun
from traindoctor.dashboard.verdicts import Verdicts
from traindoctor.errors import TraindoctorError
from traindoctor.record.folders import NotDone
from traindoctor.report.across_ranks import rank_names
from traindoctor.report.downsample import Keep, layer_names
from traindoctor.report.payload import heat_payload, run_payload, series_payload

MAX_POINTS, MAX_COLUMNS, MAX_NAMES = 4000, 1000, 64


class BadRequest(TraindoctorError):
    """A parameter that makes no sense."""


def answer(handler: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """A handler's value as JSON; an unknown run is 404, an unreadable record 422, what is refused 409, nonsense 400."""

    def respond(request: Request) -> Response:
        try:
            value, status = handler(request), 200
        except UnknownRun as error:
            value, status = {"error": str(error), "kind": "unknown"}, 404
        except BadRequest as error:
            value, status = {"error": str(error), "kind": "request"}, 400
        except NotDone as error:
            value, status = {"error": str(error), "kind": "refused"}, 409
        except TraindoctorError as error:
            value, status = {"error": str(error), "kind": "record"}, 422
        # numpy's and Python's NaN are no JSON: the payloads have none, and this makes sure.
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        # A lone surrogate (half a character in a name) cannot be sent as it is.
        return Response(text.encode("utf-8", "replace"), status, media_type="application/json")

    return respond


@dataclass
class Api:
    """Synchronous handlers: Starlette runs them in threads, each record has its lock."""

    store: RunStore
    verdicts: Verdicts

    def runs(self, request: Request) -> Any:
        return {
            "root": self.store.root.name,
            "runs": [self.store.card(name) for name in self.store.names()],
        }

    def run(self, request: Request) -> Any:
        name, rank = text(request, "run"), number(request, "rank", 0)
        with self.store.reading(name, rank=rank) as run:
            return run_payload(
                run.record,
                name=name,
                state=self.store.state(name, run.record),
                verdict=self.verdicts.of(name, run.record),
            )

    def contents(self, request: Request) -> Any:
        """What deleting a run would remove."""
        name = text(request, "run")
        found = self.store.contents(name)
        return {
            "files": found.files,
            "bytes": found.bytes,
            "entries": list(found.entries[:MAX_NAMES]),
            "running": self.store.running(name),
        }

    def rename(self, request: Request) -> Any:
        name, to = text(request, "run"), request.query_params.get("to", "")
        made = self.store.rename(name, to)
        self.verdicts.forget(name)
        return {"run": made}

    def delete(self, request: Request) -> Any:
        name = text(request, "run")
        self.store.delete(name)
        self.verdicts.forget(name)
        return {"run": name}

    def compare(self, request: Request) -> Any:
        """Two runs side by side, as `traindoctor compare` tells it."""
        one, other = text(request, "a"), text(request, "b")
        with (
            self.store.reading(one, use="compare a") as a,
            self.store.reading(other, use="compare b") as b,
        ):
            return compare_runs(a.record, b.record, titles=(one, other)).as_dict()

    def series(self, request: Request) -> Any:
        name, rank = text(request, "run"), number(request, "rank", 0)
        names = text(request, "names").split(",")[:MAX_NAMES]
        with self.store.reading(name, rank=rank) as run:
            return series_payload(
                run.record,
                names,
                start=bound(request, "from"),
                stop=bound(request, "to"),
                points=min(MAX_POINTS, max(8, number(request, "points", 800))),
            )

    def layers(self, request: Request) -> Any:
        name, rank, what = text(request, "run"), number(request, "rank", 0), text(request, "name")
        keep: Keep = "min" if request.query_params.get("keep") == "min" else "max"
        # A connection for each: one that is read for the first time must not hold up the others.
        with self.store.reading(name, rank=rank, use=f"layers {what}") as run:
            across = what in rank_names(run.record)
            if not across and what not in layer_names(run.record):
                raise BadRequest(f"{what!r} is no layer series of this run")
            drawn = run.extra.setdefault(what, RankMap(what) if across else Pyramid(what))
            start, stop = bound(request, "from"), bound(request, "to")
            heat = drawn.view(
                run.record,
                0 if start is None else math.floor(start),
                2**60 if stop is None else math.ceil(stop),
                min(MAX_COLUMNS, max(4, number(request, "columns", 240))),
                keep,
            )
            return heat_payload(run.record, what, heat)


def text(request: Request, key: str) -> str:
    value = request.query_params.get(key)
    if not value:
        raise BadRequest(f"the parameter {key!r} is missing")
    return value


def number(request: Request, key: str, default: int) -> int:
    value = bound(request, key)
    return default if value is None else int(value)


def bound(request: Request, key: str) -> float | None:
    value = request.query_params.get(key)
    if value in (None, ""):
        return None
    try:
        parsed = float(str(value))
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed) or abs(parsed) > 2**53:
        raise BadRequest(f"the parameter {key!r} must be a number, not {value!r}")
    return parsed
