"""What the gateway counts and logs of each request. No text of prompts or answers is among it."""

from __future__ import annotations

import time
from collections import Counter

from dualpath.gateway.breakdown import token_sources
from dualpath.gateway.errors import ApiError
from dualpath.gateway.flights import Flight
from dualpath.gateway.replies import Outcome
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import Metrics

log = get_logger(__name__)

_STATUSES = {"done": 200, "cancelled": 499, "failed": 500}
_LONGEST_REASON = 200


class Watch:
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.counters: Counter[str] = Counter()

    def refused(self, error: ApiError, request_id: str) -> None:
        """A request was answered with an error before it had an answer."""
        self.counters[f"http_{error.status}"] += 1
        if not error.logged:
            log.info(
                "request refused",
                request_id=request_id,
                status=error.status,
                code=error.code,
                param=error.param,
                reason=error.message[:_LONGEST_REASON],
            )

    def ended(self, flight: Flight, outcome: Outcome, error: ApiError | None) -> None:
        """A request's one wide line, and its metrics. `error` is what its client was told instead of an end."""
        request = flight.request
        total_s = time.monotonic() - flight.arrived_s
        ttft_s = flight.timings_s.get("ttft")
        tokens = len(request.generated)
        self.metrics.requests.labels(outcome=outcome).inc()
        recall = flight.recall
        self.counters["answers_known"] += len(recall.known)
        self.counters["answers_unknown"] += recall.unknown
        self.counters["answers_changed"] += recall.changed
        sources = token_sources(request.first_stats, len(request.prompt))
        for source, count in sources.items():
            self.metrics.prompt_tokens.labels(source=source).inc(count)
        if ttft_s is not None:
            self.metrics.ttft_seconds.observe(ttft_s)
            for part, seconds in flight.parts_s.items():
                self.metrics.ttft_part_seconds.labels(part=part).observe(seconds)
            if outcome == "done" and tokens > 1:
                after_first_s = flight.last_token_s - flight.arrived_s - ttft_s
                self.metrics.tpot_seconds.observe(after_first_s / (tokens - 1))
        log.info(
            "request ended",
            request_id=request.request_id,
            key=request.tenant or None,
            outcome=outcome,
            status=error.status if error else _STATUSES[outcome],
            code=error and error.code,
            finish=request.finish,
            priority=request.priority,
            attempts=request.number,
            prompt_tokens=len(request.prompt),
            generated_tokens=tokens,
            hit_tokens=request.stats.hit_tokens,
            **{f"{source}_tokens": count for source, count in sources.items()},
            read_path=request.stats.read_path,
            prefill=request.stats.prefill_node,
            decode=request.stats.decode_node,
            bytes_read=request.stats.prefill_bytes_read + request.stats.decode_bytes_read,
            ttft_s=ttft_s and round(ttft_s, 4),
            **{f"{part}_s": round(seconds, 4) for part, seconds in flight.parts_s.items()},
            total_s=round(total_s, 4),
        )
