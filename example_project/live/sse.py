"""Server-sent events: how a browser gets them, and how to keep a quiet stream open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

#: A comment: no event for the page, but proxies that close what is silent see that somebody is there.
STILL_HERE = ": still here\n\n"


def event(name: str, data: Any = None, id: str = "") -> str:
    """Return one event. Its id is what the browser sends back as ``Last-Event-ID`` when it had to connect again."""
    lines = [f"id: {id}"] if id else []
    lines += [f"event: {name}", f"data: {json.dumps(data, cls=DjangoJSONEncoder)}"]
    return "\n".join(lines) + "\n\n"


async def or_nothing(items: AsyncGenerator[Any, None], seconds: float) -> AsyncGenerator[Any, None]:
    """Yield the items, and None whenever none has come for so long. Closes ``items`` when it is closed itself."""
    waiting: asyncio.Future | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(items))
            done, _ = await asyncio.wait([waiting], timeout=seconds)
            if not done:
                yield None
                continue
            try:
                item, waiting = waiting.result(), None
            except StopAsyncIteration:
                return
            yield item
    finally:
        if waiting is not None and waiting.cancel():
            await asyncio.wait([waiting])
        await items.aclose()
