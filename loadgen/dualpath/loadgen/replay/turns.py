"""One turn of an agent: sent, timed, checked, and where it was refused for now, sent again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from dualpath.loadgen.replay.contexts import Context
from dualpath.loadgen.replay.errors import ClosedBeforeAnswer, TurnError
from dualpath.loadgen.replay.options import Target
from dualpath.loadgen.replay.pool import Pool
from dualpath.loadgen.replay.records import STOPPED, TurnRecord
from dualpath.loadgen.replay.stream import AnswerStream


class Turns:
    """Sends turns of all agents of a replay. `began_s` is its time zero; `first_token` is told each first token's
    time and TTFT."""

    def __init__(
        self,
        pool: Pool,
        target: Target,
        began_s: float,
        first_token: Callable[[float, float], None],
        *,
        keep_ids: bool,
    ) -> None:
        self._pool, self._target, self._began_s = pool, target, began_s
        self._first_token = first_token
        self._keep_ids = keep_ids
        self.records: list[TurnRecord] = []
        self.retries: Counter[str] = Counter()
        self.open: dict[int, tuple[TurnRecord, AnswerStream | None]] = {}
        """Requests under way, by agent."""

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def waiting_s(self) -> list[float]:
        """How long the requests without a first token have been due."""
        now_s = self.now_s()
        return [
            now_s - record.due_s
            for record, answer in self.open.values()
            if answer is None or answer.first_s is None
        ]

    async def answer(
        self, record: TurnRecord, context: Context, request: bytes
    ) -> AnswerStream | None:
        """Send the request and fill `record`, which is kept in `records` however it ends. The whole answer, or None
        where there is an error."""
        self.records.append(record)
        self.open[record.agent] = (record, None)
        answer: AnswerStream | None = None
        try:
            answer = await self._until_answered(record, context, request)
        except TurnError as error:
            record.error, record.detail = error.kind, error.detail
        except asyncio.CancelledError:
            record.error = STOPPED
            raise
        finally:
            record.end_s = self.now_s()
            _, latest = self.open.pop(record.agent)
            if latest is not None:
                self._fill(record, latest)
        return answer

    async def _until_answered(
        self, record: TurnRecord, context: Context, request: bytes
    ) -> AnswerStream:
        refused = 0
        while True:
            try:
                return await self._once(record, context, request)
            except TurnError as error:
                # A kept connection's end says nothing about the server; another one may be stale as well.
                refused += not isinstance(error, ClosedBeforeAnswer)
                if error.retry_after_s is None or refused > self._target.retries:
                    raise
                self.retries[
                    "stale-connection" if isinstance(error, ClosedBeforeAnswer) else error.kind
                ] += 1
                record.attempts += 1
                await asyncio.sleep(error.retry_after_s)

    async def _once(self, record: TurnRecord, context: Context, request: bytes) -> AnswerStream:
        answer = AnswerStream(
            lambda now_s: self._first_token(
                now_s - self._began_s, now_s - self._began_s - record.due_s
            )
        )
        self.open[record.agent] = (record, answer)
        try:
            async with (
                asyncio.timeout(self._target.timeout_s),
                self._pool.connection() as connection,
            ):
                if not record.sent_s:
                    record.sent_s = self.now_s()
                await connection.stream(request, answer)
        except TimeoutError:
            raise TurnError(
                "timeout", f"no whole answer within {self._target.timeout_s:g} s"
            ) from None
        answer.check_whole()
        self._check_lengths(record, context, answer)
        return answer

    def _check_lengths(self, record: TurnRecord, context: Context, answer: AnswerStream) -> None:
        generated, wanted = answer.generated(), record.wanted_tokens
        if generated != wanted if self._target.exact else not 0 < generated <= wanted:
            raise TurnError("length", f"{generated} tokens were generated instead of {wanted}")
        if not context.exact_prompt:
            return
        if len(answer.token_ids) != generated:
            raise TurnError(
                "length", f"{len(answer.token_ids)} token ids came for {generated} tokens"
            )
        if answer.prompt_tokens is not None and answer.prompt_tokens != context.tokens:
            raise TurnError(
                "length",
                f"the prompt has {context.tokens} tokens, but the server counted {answer.prompt_tokens}",
            )

    def _fill(self, record: TurnRecord, answer: AnswerStream) -> None:
        record.first_s = self._since(answer.first_s)
        record.second_s = self._since(answer.second_s)
        record.last_s = self._since(answer.last_s)
        record.generated_tokens = answer.generated()
        record.cached_tokens = answer.cached_tokens
        record.prompt_tokens = answer.prompt_tokens or record.prompt_tokens
        record.explain = answer.explain
        if self._keep_ids and answer.token_ids:
            record.token_ids = tuple(answer.token_ids)

    def _since(self, time_s: float | None) -> float | None:
        return None if time_s is None else time_s - self._began_s
