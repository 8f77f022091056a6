from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import httpx

from dualpath.cli.api_client import Answer, ApiClient
from dualpath.cli.chat import Conversation, how_served, printable


def reply(text: str) -> httpx.Response:
    event = {"choices": [{"delta": {"content": text}, "finish_reason": "stop"}]}
    return httpx.Response(200, content=f"data: {json.dumps(event)}\n\n".encode())


class Server:
    """Answers with what it is given, in order, and keeps what it was asked."""

    def __init__(self, *replies: httpx.Response) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self._replies = iter(replies)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content)["messages"])
        return next(self._replies)


def talk(server: Server, *lines: str | type[BaseException], system: str | None = None) -> str:
    """Type `lines` (or keys that raise), then Ctrl-D; returns what was shown."""
    typed: Iterator[str | type[BaseException]] = iter((*lines, EOFError))

    def read() -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    out = io.StringIO()
    with ApiClient("http://127.0.0.1:1/v1", transport=httpx.MockTransport(server)) as client:
        Conversation(client, "m", system=system, out=out).run(read)
    return out.getvalue()


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [message["role"] for message in messages]


def test_each_turn_sends_all_that_was_said() -> None:
    server = Server(reply("one"), reply("two"))
    shown = talk(server, "a", "", "b", system="be brief")
    assert roles(server.asked[1]) == ["system", "user", "assistant", "user"]
    assert server.asked[1][2]["content"] == "one"
    assert "one\n[0 of 0 prompt tokens cached · TTFT " in shown


def test_a_refused_turn_is_said_and_leaves_nothing_behind() -> None:
    refusal = httpx.Response(400, json={"error": {"message": "too long"}})
    server = Server(refusal, reply("fine"))
    shown = talk(server, "a", "b")
    assert "dualpath: too long" in shown
    assert server.asked[1] == [{"role": "user", "content": "b"}]


def test_commands_are_not_sent() -> None:
    server = Server(reply("one"), reply("two"))
    shown = talk(server, "a", "/new", "/what", "b", "/quit", "c")
    assert [roles(asked) for asked in server.asked] == [["user"], ["user"]]
    assert "/what is no command" in shown


def test_ctrl_c_at_the_prompt_drops_the_line_only() -> None:
    server = Server(reply("one"))
    assert "Ctrl-D ends" in talk(server, KeyboardInterrupt, "a")
    assert len(server.asked) == 1


def test_ctrl_c_in_an_answer_keeps_what_came() -> None:
    class Interrupted(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b'data: {"choices": [{"delta": {"content": "par"}}]}\n\n'
            raise KeyboardInterrupt

    server = Server(httpx.Response(200, stream=Interrupted()), reply("rest"))
    shown = talk(server, "a", "go on")
    assert "par\n[stopped]" in shown
    assert server.asked[1][1] == {"role": "assistant", "content": "par"}


def test_the_line_below_an_answer() -> None:
    warm = Answer("x", 600, 512, 20, 0.214, 18.24, "decode", (0, 9))
    assert how_served(warm) == (
        "[512 of 600 prompt tokens cached · path decode · TTFT 0.21 s · 18.2 tokens/s]"
    )
    cold = Answer("x", 60, 0, 1, 1.0, None, "none", (0, 0))
    assert how_served(cold) == "[0 of 60 prompt tokens cached · TTFT 1.00 s]"


def test_a_model_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b]0;x\x07\r\n\tb\x9b") == "a]0;x\n\tb"
