"""The JSON of `/v1/responses`: one object whole, or the events of its coming to be. Pure."""

from __future__ import annotations

from typing import Any

from dualpath.gateway.answers import ChatFormat, Usage, call_id
from dualpath.gateway.pieces import Piece
from dualpath.gateway.tool_parser import CallDelta

Json = dict[str, Any]


class ResponseWriter:
    """Feed it the pieces of one answer; `response` is the object as it is now. `head` are the fields that do not
    change."""

    def __init__(self, head: Json, form: ChatFormat) -> None:
        self.response: Json = {**head, "status": "in_progress", "output": [], "usage": None}
        self._form = form
        self._number = 0
        self._text: list[str] | None = None
        """Of the message that is open."""
        self._logprobs: list[Json] = []
        self._arguments: list[str] | None = None
        """Of the call that is open."""

    def begin(self) -> list[Json]:
        return [
            self._event(f"response.{name}", response=self._snapshot())
            for name in ("created", "in_progress")
        ]

    def add(self, piece: Piece) -> list[Json]:
        events: list[Json] = []
        logprobs = self._form.entries(piece) if self._form.logprobs is not None else []
        for item in piece.items:
            if isinstance(item, str):
                events += self._say(item, logprobs)
                logprobs = []
            else:
                events += self._call(item)
        return events

    def _say(self, text: str, logprobs: list[Json]) -> list[Json]:
        events = self._open_message() if self._text is None else []
        assert self._text is not None
        self._text.append(text)
        self._logprobs += logprobs
        delta = self._part("response.output_text.delta", delta=text, logprobs=logprobs)
        return [*events, delta]

    def end(self, finish: str, usage: Usage) -> list[Json]:
        """The last events; `response` is final then."""
        whole = finish != "length"
        events: list[Json] = []
        if self._text is None and not self.response["output"]:
            events += self._open_message()
        status = "completed" if whole else "incomplete"
        events += [*self._close_message(status), *self._close_call(status)]
        self.response |= {
            "status": status,
            "incomplete_details": None if whole else {"reason": "max_output_tokens"},
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }
        kind = "response.completed" if whole else "response.incomplete"
        return [*events, self._event(kind, response=self._snapshot())]

    def error(self, error: Json) -> Json:
        """The last event where the answer failed; clients know the field `error` and raise it."""
        told = {name: error[name] for name in ("code", "message", "param")}
        return self._event("error", **told, error=error)

    # ── items ──────────────────────────────────────────────────────────────────────────────────────
    def _open_message(self) -> list[Json]:
        self._text, self._logprobs = [], []
        self.response["output"].append(self._message("in_progress", []))
        return [self._item("added"), self._part("response.content_part.added", part=_part(""))]

    def _close_message(self, status: str) -> list[Json]:
        if self._text is None:
            return []
        text, part = "".join(self._text), _part("".join(self._text), self._logprobs)
        events = [
            self._part("response.output_text.done", text=text, logprobs=self._logprobs),
            self._part("response.content_part.done", part=part),
        ]
        self.response["output"][-1] = self._message(status, [part])
        self._text = None
        return [*events, self._item("done")]

    def _message(self, status: str, content: list[Json]) -> Json:
        number = len(self.response["output"]) - (status != "in_progress")
        return {
            "type": "message",
            "id": f"msg_{self._form.request_id}_{number}",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _call(self, delta: CallDelta) -> list[Json]:
        events: list[Json] = []
        if delta.name is not None:
            events += [
                *self._close_message("completed"),
                *self._open_call(delta.number, delta.name),
            ]
        if delta.arguments:
            assert self._arguments is not None
            self._arguments.append(delta.arguments)
            events.append(self._arguments_event("delta", delta=delta.arguments))
        return events + (self._close_call("completed") if delta.last else [])

    def _open_call(self, number: int, name: str) -> list[Json]:
        self._arguments = []
        item = {
            "type": "function_call",
            "id": f"fc_{self._form.request_id}_{number}",
            "call_id": call_id(self._form.request_id, 0, number),
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        self.response["output"].append(item)
        return [self._item("added")]

    def _close_call(self, status: str) -> list[Json]:
        if self._arguments is None:
            return []
        arguments, self._arguments = "".join(self._arguments), None
        item = self.response["output"][-1]
        self.response["output"][-1] = item | {"arguments": arguments, "status": status}
        return [self._arguments_event("done", arguments=arguments), self._item("done")]

    def _arguments_event(self, what: str, **fields: Any) -> Json:
        return self._event(
            f"response.function_call_arguments.{what}",
            item_id=self.response["output"][-1]["id"],
            output_index=self._index,
            **fields,
        )

    # ── events ─────────────────────────────────────────────────────────────────────────────────────
    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _item(self, what: str) -> Json:
        item = self.response["output"][-1]
        return self._event(f"response.output_item.{what}", output_index=self._index, item=item)

    def _part(self, kind: str, **fields: Any) -> Json:
        place = {"item_id": self.response["output"][-1]["id"], "content_index": 0}
        return self._event(kind, output_index=self._index, **place, **fields)

    def _snapshot(self) -> Json:
        return {**self.response, "output": list(self.response["output"])}


def _part(text: str, logprobs: list[Json] | None = None) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
