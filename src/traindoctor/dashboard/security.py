"""Who may ask: a browser on this machine, for this page. And what the page may do: nothing but its own script."""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Any port: an ssh tunnel may show the page under another one. A foreign name that resolves to
# 127.0.0.1 (DNS rebinding) is not in this list.
LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
READING = {"GET", "HEAD"}
# Sent by the page's own script. Another site's script would have to ask the server first, which never allows it.
FROM_PAGE = "x-traindoctor"


class LoopbackOnly:
    """ASGI middleware: refuses foreign Host and Origin; what changes a file comes from this very page."""

    def __init__(self, app: ASGIApp, *, policy: str) -> None:
        self.app = app
        self.extra = {
            "content-security-policy": f"{policy}; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
            "x-frame-options": "DENY",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-store",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        reason = refusal(Headers(scope=scope), reads=scope["method"] in READING)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.extra.items():
                    headers[name] = value
            await send(message)

        if reason:
            answer = PlainTextResponse(f"refused: {reason}\n", status_code=403)
            await answer(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)


def refusal(headers: Headers, *, reads: bool = True) -> str | None:
    """Why a request is refused, or None.

    A form of another site can send a POST without asking first, and an old browser tells nothing of where it comes
    from. So a request that changes something has to name its origin, and carries a header that no form can set.
    """
    host = headers.get("host", "")
    if host_name(host) not in LOOPBACK:
        return "the Host header is not this machine's loopback name"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return "the request comes from another site"
    if not reads and (origin is None or headers.get(FROM_PAGE) != "1"):
        return "a change has to come from this page"
    if headers.get("sec-fetch-site") in {"cross-site", "same-site"} and (
        headers.get("sec-fetch-mode") != "navigate"
    ):
        return "the request comes from another site"
    if not reads and headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "a change has to come from this page"
    return None


def host_name(host: str) -> str:
    """Host without its port: `localhost:80` -> `localhost`, `[::1]:80` -> `[::1]`."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\[\]]+)(:\d{1,5})?", host)
    return match[1].lower() if match else ""
