"""What the gateway counts and logs of each request. No text of prompts or answers is among it."""

from __future__ import annotations

import time
from collections import Counter

from dualpath.gateway.flights import Flight
from dualpath.gateway.replies import Outcome
from dualpath.telemetry.logs import get_logger
from dualpath.telemetry.metrics import Metrics

log = get_logger(__name__)


class Watch:
    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.counters: Counter[str] = Counter()

    def refused(self, status: int) -> None:
        """A request was answered with an error before it had an answer."""
        self.counters[f"http_{status}"] += 1

    def ended(self, flight: Flight, outcome: Outcome) -> None:
        request = flight.request
        total_s = time.monotonic() - flight.arrived_s
        ttft_s = flight.timings_s.get("ttft")
        tokens = len(request.generated)
        self.metrics.requests.labels(outcome=outcome).inc()
        recall = flight.recall
        self.counters["answers_known"] += len(recall.known)
        self.counters["answers_unknown"] += recall.unknown
        self.counters["answers_changed"] += recall.changed
        if ttft_s is not None:
            self.metrics.ttft_seconds.observe(ttft_s)
            if outcome == "done" and tokens > 1:
                after_first_s = flight.last_token_s - flight.arrived_s - ttft_s
                self.metrics.tpot_seconds.observe(after_first_s / (tokens - 1))
        log.info(
            "request ended",
            request_id=request.request_id,
            outcome=outcome,
            attempts=request.number,
            prompt_tokens=len(request.prompt),
            generated_tokens=tokens,
            hit_tokens=request.stats.hit_tokens,
            read_path=request.stats.read_path,
            ttft_s=ttft_s and round(ttft_s, 4),
            total_s=round(total_s, 4),
        )
