"""AIPerf and `dualpath replay` in turns, at the same load, against the same running gateway.

    python -m benchmarks.aiperf_beside --aiperf VENV/bin/aiperf [--model synthetic] [--requests 120] [--per-s 8]
        [--input 480] [--output 32] [--rounds 3]

AIPerf is installed in an environment of its own (`python -m venv VENV; VENV/bin/pip install aiperf==0.13.0`). The
load is one trace in Mooncake's format, which both read: requests at even distances, of so many tokens, none of which
shares a block with another; answers of exactly so many. Both stream from `/v1/completions`. DualPath's client sends
ids, AIPerf text of as many tokens (its own texts from a trace's hashes need a tokenizer from the Hub). Who is first
changes with each round. Figures of a client are its own; beside them stands what the gateway measured of the same
requests, from arrival to the first token: where the clients differ and the gateway does not, it is the clients.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from benchmarks.local import Cluster, cluster, environment, machine, word_ids
from benchmarks.ratios import in_turn
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer

from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import load_settings

_OWN_SETTINGS = {"log_level": "warning"}


@dataclass(frozen=True)
class Figures:
    """Of one run; milliseconds, by percentile (50, 99)."""

    answered: int
    per_s: float
    ttft: tuple[float, float]
    itl: tuple[float, float]
    e2e: tuple[float, float]


def trace_lines(args: argparse.Namespace, number: int) -> list[dict[str, Any]]:
    """`number`: another one, other blocks."""
    return [
        {
            "timestamp": round(1000 * i / args.per_s),
            "input_length": args.input,
            "output_length": args.output,
            "hash_ids": [number * args.requests + i],
        }
        for i in range(args.requests)
    ]


def with_text(lines: list[dict[str, Any]], spec: ModelSpec, number: int) -> list[dict[str, Any]]:
    """The same with texts of as many tokens in place of hashes."""
    assert spec.directory is not None
    tokenizer = Tokenizer.from_file(str(spec.directory / "tokenizer.json"))
    words, source = word_ids(spec), random.Random(number)
    told = []
    for line in lines:
        count = line["input_length"]
        text = tokenizer.decode([source.choice(words) for _ in range(count)])
        if len(tokenizer.encode(text).ids) != count:
            # The synthetic model writes words, but reads letters.
            text = "".join(source.choices(string.ascii_lowercase, k=count))
        rest = {name: line[name] for name in ("timestamp", "output_length")}
        told.append({**rest, "text_input": text})
    return told


def write(file: Path, lines: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def run_aiperf(served: Cluster, room: Path, args: argparse.Namespace, number: int) -> Figures:
    """Raises RuntimeError where AIPerf fails."""
    spec = load_spec(load_settings(model=args.model, home=args.home))
    lines = with_text(trace_lines(args, number), spec, number)
    trace, out = write(room / f"{number}.jsonl", lines), room / f"{number}.aiperf"
    command = [
        *(str(args.aiperf), "profile", "--model", served.model, "--url", _root(served)),
        *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(spec.directory)),
        *("--input-file", str(trace), "--custom-dataset-type", "mooncake_trace"),
        *("--fixed-schedule", "--artifact-dir", str(out)),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{args.output}"),
        *("--use-server-token-count", "--random-seed", str(number + 1), "--ui", "none"),
    ]
    _run(*command)
    (found,) = out.rglob("profile_export_aiperf.json")
    said: dict[str, Any] = json.loads(found.read_text())

    def of(name: str) -> tuple[float, float]:
        return said[name]["p50"], said[name]["p99"]

    return Figures(
        round(said["request_count"]["avg"]),
        said["request_throughput"]["avg"],
        of("time_to_first_token"),
        of("inter_token_latency"),
        of("request_latency"),
    )


def _run(*command: str) -> None:
    """Raises RuntimeError with the command's last words where it fails."""
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")


def run_replay(served: Cluster, room: Path, args: argparse.Namespace, number: int) -> Figures:
    trace = write(room / f"{number}.jsonl", trace_lines(args, number))
    out = room / f"{number}.json"
    _run(
        *(sys.executable, "-m", "dualpath.cli.main", "replay"),
        *("--trace", str(trace), "--timed", "--agents", str(args.requests)),
        *("--url", served.base_url, "--prompts", "ids", "--seed", str(number), "-o", str(out)),
    )
    turns = json.loads(out.read_text())["turn_records"]
    answered = np.array([not error for error in turns["error"]])
    begun, first, last, end, made = (
        np.array(turns[name], float)[answered]
        for name in ("sent_s", "first_s", "last_s", "end_s", "generated_tokens")
    )
    return Figures(
        int(answered.sum()),
        int(answered.sum()) / float(end.max() - begun.min()),
        _percentiles(first - begun),
        _percentiles((last - first) / (made - 1)),
        _percentiles(end - begun),
    )


def _percentiles(seconds: np.ndarray[Any, Any]) -> tuple[float, float]:
    p50, p99 = 1000 * np.percentile(seconds, (50, 99))
    return float(p50), float(p99)


@dataclass(frozen=True)
class Seen:
    """What a gateway has counted so far."""

    ttft_s: float
    requests: float
    prompt_tokens: float


def gateway(served: Cluster) -> Seen:
    text = httpx.get(f"{_root(served)}/metrics", trust_env=False).text
    sums: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value
    return Seen(
        sums["dualpath_ttft_seconds_sum"],
        sums["dualpath_ttft_seconds_count"],
        sums["dualpath_prompt_tokens_total"],
    )


def _root(served: Cluster) -> str:
    return served.base_url.removesuffix("/v1")


Client = Callable[[Cluster, Path, argparse.Namespace, int], Figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aiperf", type=Path, required=True, help="its command")
    parser.add_argument("--model", default="synthetic")
    parser.add_argument("--home", type=Path, default=None, help="whose models/ has the model")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--per-s", type=float, default=8.0)
    parser.add_argument(
        "--input", type=int, default=480, help="tokens; at most a block of the trace, 512"
    )
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    settings = load_settings(model=args.model, home=args.home)
    args.home = settings.home
    prepare_model(settings, print)
    clients: list[tuple[str, Client]] = [("AIPerf", run_aiperf), ("dualpath replay", run_replay)]
    print(
        f"{machine()}, {args.model}: {args.requests} requests of {args.input} and {args.output} tokens, "
        f"{args.per_s:g} a second; milliseconds"
    )
    print(
        "| | answered | requests/s | TTFT p50, p99 | at the gateway, mean | ITL p50, p99 | end to end p50, p99 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with (
        cluster({"model": args.model, **_OWN_SETTINGS}, args.home) as served,
        tempfile.TemporaryDirectory() as room,
    ):
        for number in range(args.rounds):
            for place, (name, run) in enumerate(in_turn(clients, number)):
                before = gateway(served)
                got = run(served, Path(room), args, 2 * number + place)
                seen = gateway(served)
                count = seen.requests - before.requests
                tokens = seen.prompt_tokens - before.prompt_tokens
                # DualPath's client looks first what the server understands, with a request of its own.
                if got.answered != args.requests or not 0 <= count - args.requests <= 1:
                    raise RuntimeError(
                        f"{name}: {got.answered} answered; at the gateway {count:g} of {tokens:g} tokens"
                    )
                spent = seen.ttft_s - before.ttft_s
                cells = (f"{pair[0]:.1f}, {pair[1]:.1f}" for pair in (got.ttft, got.itl, got.e2e))
                ttft, itl, e2e = cells
                print(
                    f"| {name} | {got.answered} | {got.per_s:.2f} | {ttft} | {1000 * spent / count:.1f} | "
                    f"{itl} | {e2e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
