"""What the benchmarks share: clusters of their own, streamed requests, prompts, and which machine this is."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from dualpath.cli.started import started
from dualpath.cluster.home import Home
from dualpath.cluster.record import ClusterRecord, load_record
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import ENV_PREFIX, load_settings

PATHS = ("prefill", "decode", "split")
_ANSWER_S = 300.0


def machine() -> str:
    """Date, cores and load: what figures are worth nothing without."""
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores ({_cpu_name()}), "
        f"load {os.getloadavg()[0]:.1f}"
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {platform.machine()}"
    return platform.machine()


def environment() -> dict[str, str]:
    """Of this process, without settings: what is measured is all in the arguments."""
    return {name: text for name, text in os.environ.items() if not name.startswith(ENV_PREFIX)}


def end_in_order() -> None:
    """Let SIGTERM unwind as Ctrl-C does, so that clusters are stopped and their homes removed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`. Raises RuntimeError where there is none within 30 s."""
    deadline = time.monotonic() + 30
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within 30 s: {what}")
        time.sleep(0.05)
    return found


# ── models and prompts ─────────────────────────────────────────────────────────────────────────────
def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--model`, `--dtype` and `--home`, for `prepare`."""
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, or a directory")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument(
        "--home",
        type=Path,
        default=None,
        help="the home whose models/ has the converted checkpoint, or gets it; default: that of `dualpath up`",
    )


def prepare(args: argparse.Namespace) -> ModelSpec:
    """Have the model of `add_model_options` converted and hashed, which no benchmark times."""
    settings = load_settings(model=args.model, dtype=args.dtype, home=args.home)
    prepare_model(settings, print)
    args.home = settings.home
    return load_spec(settings)


def random_ids(source: random.Random, n: int) -> list[int]:
    return [source.randrange(300, 30_000) for _ in range(n)]


def word_ids(spec: ModelSpec) -> list[int]:
    """Ids of the tokens that are whole English-looking words: prompts of them have exact lengths, and a model
    goes on with text, not with parts of characters that a stream would hold back."""
    assert spec.directory is not None
    vocabulary = Tokenizer.from_file(str(spec.directory / "tokenizer.json")).get_vocab()
    return sorted(id for text, id in vocabulary.items() if re.fullmatch("Ġ[a-z]{3,}", text))


# ── clusters ───────────────────────────────────────────────────────────────────────────────────────
class Cluster:
    """`dualpath up` with `settings` on a home of its own; `close` stops it. It dies with this process, whatever
    happens, and is stopped in order after Ctrl-C and SIGTERM."""

    def __init__(
        self, home: Path, settings: Mapping[str, Any], models_of: Path | None = None
    ) -> None:
        """`models_of`: the home whose converted models are used. Raises NotStarted where it does not start."""
        end_in_order()
        self.home = Home(home)
        home.mkdir(parents=True, exist_ok=True)
        if models_of is not None:
            self.home.models.symlink_to(Home(models_of).models.resolve())
        config = home / "settings.json"
        config.write_text(json.dumps(dict(settings)))
        began = time.monotonic()
        self._life = ExitStack()
        arguments = ["--config", str(config)]
        self._life.enter_context(started(self.home, arguments, environment(), home / "up.log"))
        # Made once: that takes 20 ms, which are no server's. A connection is used once, as by most scripts.
        once = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        client = httpx.Client(timeout=_ANSWER_S, trust_env=False, limits=once)
        self._http = self._life.enter_context(client)
        self.started_s = time.monotonic() - began
        self.base_url, self.model = self.record.base_urls[0], self.record.model

    @property
    def record(self) -> ClusterRecord:
        record = load_record(self.home)
        assert record is not None, "the cluster runs"
        return record

    def close(self) -> None:
        self._life.close()

    def ask(self, prompt: Sequence[int], max_tokens: int = 1) -> Streamed:
        """Stream a completion of exactly `max_tokens` tokens, greedily. Raises httpx.HTTPError, RuntimeError."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        content_s: list[float] = []
        explain: dict[str, Any] = {}
        sent, began = time.time(), time.perf_counter()
        with self._http.stream(
            "POST",
            f"{self.base_url}/completions",
            json=body,
            headers={"X-DualPath-Explain": "1"},
        ) as answer:
            answer.raise_for_status()
            for event in _events(answer.iter_lines()):
                if any(choice["text"] for choice in event.get("choices", ())):
                    content_s.append(time.perf_counter() - began)
                explain = event.get("dualpath", explain)
        if not explain or not content_s:
            raise RuntimeError(f"the stream ended without text or explanation: {explain}")
        return Streamed(sent, tuple(content_s), max_tokens, explain)

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each service has used so far, all its threads together, by name."""
        return {
            service.name: thread_s(service.process.pid)
            for service in self.record.services
            if service.exit_status is None
        }

    def traces(self, node: str = "prefill-0") -> list[dict[str, Any]]:
        """What the node logged as JSON so far."""
        whole, _, _ = self.home.log_file(node).read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]


def thread_s(pid: int) -> float:
    """CPU seconds of a process's threads that live; finer than the clock ticks of `stat`."""
    schedstats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in schedstats) / 1e9


@dataclass(frozen=True)
class Streamed:
    """An answer: `sent` on the wall clock; `content_s`, when each chunk with text came, since then."""

    sent: float
    content_s: tuple[float, ...]
    tokens: int
    explain: dict[str, Any]

    @property
    def ttft_s(self) -> float:
        return self.content_s[0]

    def expect(self, path: str, hit_tokens: int) -> Streamed:
        """Raises RuntimeError where KV was read another way: the figure would be of something else."""
        got = self.explain["read_path"], self.explain["hit_tokens"]
        if got != (path, hit_tokens) or self.explain["attempts"] != 1:
            raise RuntimeError(
                f"wanted {hit_tokens} hit tokens by path {path} at the first attempt: {self.explain}"
            )
        return self


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(f"the stream failed: {event['error']}")
            yield event


@contextmanager
def cluster(settings: Mapping[str, Any], models_of: Path | None = None) -> Iterator[Cluster]:
    """A cluster for as long as the block runs; its home, store and logs are removed afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        running = Cluster(Path(directory), settings, models_of)
        try:
            yield running
        finally:
            running.close()
