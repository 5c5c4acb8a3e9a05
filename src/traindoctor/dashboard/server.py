"""The live page on this machine's loopback address: in this process, or beside a run in its own."""

import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from traindoctor.dashboard.api import Api, answer
from traindoctor.dashboard.launch import serve_in_background
from traindoctor.dashboard.live import Live
from traindoctor.dashboard.security import LoopbackOnly
from traindoctor.dashboard.store import RunStore
from traindoctor.dashboard.verdicts import Verdicts
from traindoctor.errors import TraindoctorError
from traindoctor.report.page import content_security_policy, page

__all__ = ["listen", "make_app", "serve", "serve_in_background", "url_of"]

HOST = "127.0.0.1"
DEFAULT_PORT = 8765
# Ports that are tried after the wanted one when that is taken.
MORE_PORTS = 20
# A server beside a run outlives it while a page is open, and so long after the last one closed.
LINGER_SECONDS = 30.0


def make_app(folder: Path) -> Starlette:
    """The application over a folder of runs, or over one run."""
    store = RunStore(folder)
    verdicts = Verdicts(store)
    api, live = Api(store, verdicts), Live(store, verdicts)
    html = page()

    def index(request: Request) -> Response:
        return HTMLResponse(html)

    def icon(request: Request) -> Response:
        return Response(status_code=204)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        live.stopping = True

    app = Starlette(
        routes=[
            Route("/", index),
            Route("/favicon.ico", icon),
            Route("/api/runs", answer(api.runs)),
            Route("/api/run", answer(api.run)),
            Route("/api/series", answer(api.series)),
            Route("/api/layers", answer(api.layers)),
            Route("/api/contents", answer(api.contents)),
            Route("/api/compare", answer(api.compare)),
            Route("/api/rename", answer(api.rename), methods=["POST"]),
            Route("/api/delete", answer(api.delete), methods=["POST"]),
            Route("/api/events", live.events),
        ],
        lifespan=lifespan,
    )
    app.add_middleware(LoopbackOnly, policy=content_security_policy(html))
    app.state.live = live
    return app


class Server(uvicorn.Server):
    """Tells open event streams to end before it waits for them."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        super().__init__(config)
        self.live: Live = app.state.live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.live.stopping = True
        await super().shutdown(sockets)


def listen(port: int | None) -> socket.socket:
    """A listening socket on loopback: the port asked for, or else the first free one from the default on."""
    if port is not None:
        wanted = [port]
    else:
        wanted = [*range(DEFAULT_PORT, DEFAULT_PORT + MORE_PORTS), 0]
    for number in wanted:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, number))
            sock.listen(64)
            return sock
        except OSError:
            sock.close()
    raise TraindoctorError(
        f"port {port} on {HOST} is taken: give another with --port", slug="port-taken"
    )


def url_of(sock: socket.socket) -> str:
    return f"http://{HOST}:{sock.getsockname()[1]}/"


def serve(folder: Path, sock: socket.socket, *, beside: int | None = None) -> None:
    """Serves until it is interrupted; beside a process, until that has ended and no page is open."""
    server = Server(make_app(folder))
    if beside is not None:
        threading.Thread(target=_end_after, args=(server, beside), daemon=True).start()
    server.run(sockets=[sock])


def _end_after(server: Server, process: int) -> None:
    gone_since = None
    while not server.should_exit:
        time.sleep(1.0)
        if _alive(process):
            continue
        gone_since = gone_since or time.monotonic()
        idle_since = max(gone_since, server.live.last_listener)
        if server.live.listeners == 0 and time.monotonic() - idle_since > LINGER_SECONDS:
            server.should_exit = True


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
