"""A small server that speaks OpenAI's streams over real sockets, and misbehaves where a test wants it to."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from dualpath.tasks import Tasks


@dataclass
class Asked:
    """One request for an answer, and how to answer it."""

    number: int
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter
    started: bool = False

    @property
    def prompt(self) -> list[int]:
        return self.body["prompt"]  # type: ignore[no-any-return]

    async def refuse(self, status: int, message: str, **headers: str) -> None:
        body = json.dumps({"error": {"message": message}}).encode()
        lines = [f"HTTP/1.1 {status} No", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        """A piece of the stream."""
        if not self.started:
            self.started = True
            self.writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def event(self, **fields: Any) -> None:
        await self.send(b"data: " + json.dumps(fields).encode() + b"\n\n")

    async def tokens(self, *ids: int, finish: str | None = None) -> None:
        text = "".join(f" t{i}" for i in ids)
        if self.path.endswith("/chat/completions"):
            choice: dict[str, Any] = {"delta": {"content": text}, "finish_reason": finish}
        else:
            choice = {"text": text, "token_ids": list(ids), "finish_reason": finish}
        await self.event(choices=[{"index": 0, **choice}])

    def prompt_tokens(self) -> int:
        """A token is an id, or a word."""
        if "messages" in self.body:
            return 3 + sum(len(str(m["content"]).split()) for m in self.body["messages"])
        prompt = self.body["prompt"]
        return len(prompt.split()) if isinstance(prompt, str) else len(prompt)

    def usage(self, completion_tokens: int) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt_tokens(), "completion_tokens": completion_tokens}

    async def end(self, completion_tokens: int) -> None:
        await self.event(choices=[], usage=self.usage(completion_tokens))
        await self.send(b"data: [DONE]\n\n")
        await self.close_stream()

    async def close_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def whole(self) -> None:
        """The answer that was asked for: ids 1, 2, 3 and so on."""
        count = self.body["max_tokens"]
        for token_id in range(1, count):
            await self.tokens(token_id)
        await self.tokens(count, finish="length")
        await self.end(count)


Respond = Callable[[Asked], Awaitable[None]]


@dataclass
class OpenAiServer:
    """Use as an asynchronous context manager. `asked` are the streamed requests so far."""

    respond: Respond = Asked.whole
    takes_ids: bool = True
    ssl: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    async def __aenter__(self) -> Self:
        self._serving = Tasks()
        self._server = await asyncio.start_server(
            self._connected,
            "127.0.0.1",
            0,
            limit=1 << 24,
            backlog=1024,
            ssl=self.ssl,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        await self._serving.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.spawn(self._serve(reader, writer), "client")

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while not writer.is_closing() and await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        _, path, _ = first.split(" ")
        fields = json.loads(body) if body else {}
        asked = Asked(len(self.asked), path, fields, headers, writer)
        if fields.get("stream"):
            self.asked.append(asked)
            return await self._answer(asked, reader)
        await self._plain(asked)
        return True

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader) -> bool:
        """Until the answer's end, or the client has gone; is the connection still there?"""
        # A client that waits for its answer sends nothing more: what comes is the end.
        answering = asyncio.ensure_future(self.respond(asked))
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
                return not asked.writer.is_closing()
            return False
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _plain(self, asked: Asked) -> None:
        if asked.path.endswith("/models"):
            answer: dict[str, Any] = {"data": [{"id": "little"}]}
        else:
            ids = isinstance(asked.body.get("prompt"), list)
            if ids and not self.takes_ids:
                await asked.refuse(400, "a prompt is text")
                return
            answer = {"choices": [{"token_ids": [1]}], "usage": asked.usage(1)}
        body = json.dumps(answer).encode()
        asked.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await asked.writer.drain()
