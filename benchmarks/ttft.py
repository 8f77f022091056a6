"""Time to first token of a long prompt: nothing of it cached, against most of it cached.

    python -m benchmarks.ttft [--paths prefill,decode,split] [--prompt 2045] [--cached-share 0.97] [--runs 5]

For each read path a cluster of one prefill and one decode node with a real model, on this machine, asked through
the OpenAI endpoint /v1/completions with `stream`. What is timed is what a client sees: from sending the
request to the first chunk with text. Cold and warm requests alternate:

    cold   a prompt whose tokens are all new: no block of it is stored anywhere
    warm   a stored context of whole blocks, and a new end: the context is read from storage by the path, the
           end is computed

Every answer tells how many tokens were hits and by which path; a run where that is not as wanted is an error,
not a figure. The reference is the cold prompt; ratio = cold / warm, of medians.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.local import PATHS, Cluster, add_model_options, cluster, machine, prepare, word_ids

BLOCK_TOKENS = 64
WANTED_RATIO = 8.0
FEW_TOKENS = 4


def cached_tokens(prompt_tokens: int, share: float) -> int:
    """The whole blocks that come nearest to `share` of the prompt, at least one token of which is computed."""
    blocks = round(prompt_tokens * share / BLOCK_TOKENS)
    return min(blocks, (prompt_tokens - 1) // BLOCK_TOKENS) * BLOCK_TOKENS


@dataclass(frozen=True)
class Result:
    path: str
    cold_s: Sequence[float]
    warm_s: Sequence[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.cold_s) / statistics.median(self.warm_s)


class Prompts:
    """Random words; no two prompts share a block but where the context is asked for."""

    def __init__(self, words: Sequence[int], prompt_tokens: int, cached: int) -> None:
        self._words, self._source = words, random.Random()
        self.prompt_tokens, self.cached = prompt_tokens, cached
        self._context = self._some(cached)

    def _some(self, n: int) -> list[int]:
        return self._source.choices(self._words, k=n)

    def cold(self) -> list[int]:
        return self._some(self.prompt_tokens)

    def warm(self) -> list[int]:
        return [*self._context, *self._some(self.prompt_tokens - self.cached)]


def measure(running: Cluster, path: str, prompts: Prompts, runs: int) -> Result:
    running.ask(prompts.warm())
    running.ask(prompts.warm())
    cold_s, warm_s = [], []
    for _ in range(runs):
        cold = running.ask(prompts.cold(), FEW_TOKENS).expect("none", 0)
        warm = running.ask(prompts.warm(), FEW_TOKENS).expect(path, prompts.cached)
        cold_s.append(cold.ttft_s)
        warm_s.append(warm.ttft_s)
        phases = ", ".join(f"{n} {s * 1e3:.0f}" for n, s in warm.explain["timings_s"].items())
        print(
            f"{path:8} cold {cold.ttft_s * 1e3:7.1f} ms   warm {warm.ttft_s * 1e3:7.1f} ms   "
            f"(warm, ms: {phases})",
            flush=True,
        )
    return Result(path, cold_s, warm_s)


def report(results: Sequence[Result]) -> None:
    print("\nmedians    cold (reference)        warm   ratio")
    for result in results:
        cold, warm = statistics.median(result.cold_s), statistics.median(result.warm_s)
        good = "good" if result.ratio >= WANTED_RATIO else f"wanted: {WANTED_RATIO:g}"
        print(
            f"{result.path:8} {cold * 1e3:14.1f} ms {warm * 1e3:11.1f} ms {result.ratio:7.2f}   {good}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paths", default=",".join(PATHS), help="read paths, with commas")
    parser.add_argument("--prompt", type=int, default=2045, help="tokens")
    parser.add_argument("--cached-share", type=float, default=0.97, help="of the prompt")
    parser.add_argument("--runs", type=int, default=5, help="of each kind and path")
    add_model_options(parser)
    args = parser.parse_args()
    spec = prepare(args)
    words = word_ids(spec)
    cached = cached_tokens(args.prompt, args.cached_share)
    print(
        f"{machine()}; {args.model} ({spec.dtype}), prompts of {args.prompt} tokens, warm: {cached} of "
        f"them ({cached / args.prompt:.1%}) cached",
        flush=True,
    )
    results = []
    for path in args.paths.split(","):
        settings = {"model": args.model, "dtype": args.dtype, "read_path": path}
        with cluster(settings, args.home) as running:
            prompts = Prompts(words, args.prompt, cached)
            results.append(measure(running, path, prompts, args.runs))
    report(results)
    print(f"measured: {machine()}")


if __name__ == "__main__":
    main()
