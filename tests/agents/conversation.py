"""A real client of the SDK beside a real server: `asked(folder, questions)`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters


def talk(folder: Path, conversation: Callable[[Client], Awaitable[Any]]) -> Any:
    """Starts `traindoctor mcp --folder FOLDER` and talks to it; what the conversation gives."""
    command = ["-m", "traindoctor", "mcp", "--folder", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=command, cwd=str(folder))

    async def whole() -> Any:
        async with Client(server) as client:
            return await conversation(client)

    return anyio.run(whole)


async def ask(client: Client, tool: str, /, **given: Any) -> Any:
    """The structured answer of a tool, or the sentence in which it refuses."""
    answer = await client.call_tool(tool, given)
    if answer.is_error:
        return answer.content[0].text
    return answer.structured_content
