"""`python tests/support/hold_model.py DIRECTORY DTYPE`: load a checkpoint, use all of its weights, print by how
many bytes that made the process's own memory grow (pages that are no file's), and hold it until stdin ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dualpath.model.api import LayerView, PrefillRow
from dualpath.model.backends import load_backend
from dualpath.model.spec import load_spec
from dualpath.settings import load_settings
from dualpath.wire.types import Sampling

TOKENS = 100


def own_bytes() -> int:
    """Anonymous memory: copies, where weights are not the file's pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Anonymous":
            return int(rest.split()[0]) << 10
    raise LookupError("this kernel does not count anonymous pages")


async def main() -> None:
    directory, dtype = Path(sys.argv[1]), sys.argv[2]
    settings = load_settings(
        model=str(directory), dtype=dtype, threads=1, home=directory.parent / "home"
    )
    spec = load_spec(settings)
    # Libraries are loaded, and have what memory they want, before the measured model comes.
    grown = []
    for _ in range(2):
        before = own_bytes()
        backend = load_backend(spec, settings)
        forward = await backend.begin_prefill(
            [PrefillRow(range(TOKENS), 0, Sampling(max_tokens=1, seed=0))]
        )
        for layer, size in enumerate(backend.geometry.row_bytes):
            await forward.layer(layer, [LayerView(backend.allocate(TOKENS * size), 0)])
        await forward.finish()
        grown.append(own_bytes() - before)
    print(grown[-1], flush=True)
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    asyncio.run(main())
