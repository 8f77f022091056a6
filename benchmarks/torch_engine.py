"""Tokens per second of the torch engine against plain `transformers`, in the same run.

`python -m benchmarks.torch_engine --dtype float32 --batch 8 --context 300 --steps 16` prints medians and
their ratio; above 1 this engine is the faster one. Steps of the two alternate, so that whatever else the
machine does hits both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import torch
from benchmarks.plain_model import PlainModel

from dualpath.model.api import Backend, DecodeRow, LayerView, PrefillRow
from dualpath.model.backends import load_backend
from dualpath.model.prepare import prepare_model
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.model.torch_model import thread_count
from dualpath.settings import load_settings
from dualpath.wire.types import Sampling

GREEDY = Sampling(max_tokens=1 << 20, seed=0)


async def prefill(backend: Backend, prompt: list[int], room: int) -> DecodeRow:
    """A whole prompt in one forward, straight into the buffer that decoding goes on with."""
    geometry, capacity = backend.geometry, len(prompt) + room
    buffer = backend.allocate(geometry.flat_bytes(capacity))
    forward = await backend.begin_prefill([PrefillRow(prompt, 0, GREEDY)])
    for layer in range(geometry.n_layers):
        await forward.layer(layer, [LayerView(buffer, geometry.flat_offset(capacity, layer, 0))])
    [first] = await forward.finish()
    assert first is not None
    return DecodeRow(buffer, capacity, len(prompt), first.token_id, GREEDY, 1)


async def compare(backend: Backend, spec: ModelSpec, batch: int, context: int, steps: int) -> None:
    model = PlainModel(spec)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(20, spec.vocab_size, (batch, context), generator=generator)
    ours, theirs = [], []
    rows = []
    await prefill(backend, prompts[0].tolist(), 1)
    model.prefill(prompts[:1].tolist())
    for prompt in prompts:
        started = time.perf_counter()
        rows.append(await prefill(backend, prompt.tolist(), steps))
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        model.prefill([prompt.tolist()])
        theirs.append(time.perf_counter() - started)
    report("prefill", context, ours, theirs)
    model.prefill(prompts.tolist())
    ours, theirs = [], []
    for _ in range(steps):
        started = time.perf_counter()
        results = await backend.decode(rows)
        ours.append(time.perf_counter() - started)
        for row, result in zip(rows, results, strict=True):
            assert result is not None
            row.tokens, row.last_token, row.index = row.tokens + 1, result.token_id, row.index + 1
        started = time.perf_counter()
        model.step()
        theirs.append(time.perf_counter() - started)
    report("decode", batch, ours, theirs)


def report(what: str, tokens: int, ours: list[float], theirs: list[float]) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"{what}: {tokens / mine:.1f} tokens/s, transformers {tokens / other:.1f} tokens/s, "
        f"ratio {other / mine:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    settings = load_settings(
        model=arguments.model, dtype=arguments.dtype, device="cpu", threads=arguments.threads
    )
    prepare_model(settings, print)
    spec = load_spec(settings)
    backend = load_backend(spec, settings)
    torch.set_num_threads(thread_count(settings))
    asyncio.run(compare(backend, spec, arguments.batch, arguments.context, arguments.steps))
    backend.close()


if __name__ == "__main__":
    main()
