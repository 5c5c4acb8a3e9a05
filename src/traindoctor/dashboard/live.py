"""Server-sent events: one small message whenever a run, or the list of runs, has changed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from traindoctor.dashboard.store import RunStore, UnknownRun
from traindoctor.dashboard.verdicts import Verdicts
from traindoctor.errors import TraindoctorError
from traindoctor.record.folders import fingerprint
from traindoctor.record.progress import num_steps

# The writer flushes every half second; a step is then seen less than 1 s after it was made.
POLL_SECONDS = 0.15
LIST_SECONDS = 0.5
# A comment now and then tells both sides that the line still stands.
BEAT_SECONDS = 10.0


@dataclass
class Live:
    """Counts its listeners: a server that was started beside a run stays while a page is open."""

    store: RunStore
    verdicts: Verdicts
    stopping: bool = False
    listeners: int = 0
    last_listener: float = field(default_factory=time.monotonic)

    async def events(self, request: Request) -> StreamingResponse:
        name = request.query_params.get("run")
        look, wait = (
            (lambda: self._look_at_run(name), POLL_SECONDS)
            if name
            else (self._look_at_list, LIST_SECONDS)
        )
        return StreamingResponse(
            self._stream(request, look, wait),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def _stream(self, request: Request, look: Any, wait: float) -> AsyncIterator[bytes]:
        self.listeners += 1
        try:
            yield b"retry: 1000\n\n"
            known, beat = None, time.monotonic()
            while not self.stopping and not await request.is_disconnected():
                seen = await run_in_threadpool(look)
                if seen != known:
                    known = seen
                    yield f"data: {json.dumps(seen)}\n\n".encode()
                    beat = time.monotonic()
                elif time.monotonic() - beat > BEAT_SECONDS:
                    yield b": still here\n\n"
                    beat = time.monotonic()
                await asyncio.sleep(wait)
        finally:
            self.listeners -= 1
            self.last_listener = time.monotonic()

    def _look_at_run(self, name: str) -> dict[str, Any]:
        try:
            with self.store.reading(name, use="live") as run:
                version = run.record.version()
                if run.extra.get("version") != version:
                    run.extra["version"] = version
                    run.extra["seen"] = {
                        "steps": num_steps(run.record),
                        "exams": len(run.record.exam_results),
                        "notes": len(run.record.notes),
                        "names": len(run.record.names) + len(run.record.layer_names),
                    }
                # A verdict that is made here is asked for by looking, and seen when it is there.
                self.verdicts.of(name, run.record)
                return {
                    **run.extra["seen"],
                    "state": self.store.state(name, run.record),
                    "verdict": self.verdicts.version(name),
                    "facts": len(run.record.facts),
                    "said": run.record.fact("verdict", {}).get("verdict"),
                }
        except TraindoctorError as error:
            return {"error": str(error)}

    def _look_at_list(self) -> dict[str, Any]:
        seen = {}
        for name in self.store.names():
            with suppress(UnknownRun):  # deleted since it was listed
                seen[name] = hash(fingerprint(self.store.folder(name))) & 0xFFFFFFFF
        return seen
