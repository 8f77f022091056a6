"""A few seconds of the fuzzer; `python -m tests.fuzz.frames` goes on for as long as one likes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fuzz.codec import check
from tests.fuzz.frames import fuzz
from tests.fuzz.streams import Streams
from tests.support.certificates import Authority

SECONDS = 4.0


def test_the_codec_reads_any_bytes_as_a_plain_one_does() -> None:
    draw = random.Random(1)
    streams = Streams(draw)
    ends = set()
    for _ in range(500):
        greetings = draw.choice((0, 0, 0, 1, 3))
        data = (streams.greeting() if greetings else b"") + streams.data()
        ends.add(check(streams.damaged(data), greetings, draw))
    assert ends == {"between frames", "in a header", "in a payload", "malformed"}


@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_nothing_that_peers_say_harms_an_endpoint_or_its_honest_peer(
    encrypted: bool, tmp_path: Path
) -> None:
    files: Sequence[Path] = ()
    if encrypted:
        authority = Authority(tmp_path)
        files = (*authority.issue("fuzz"), authority.file)
    report = await fuzz(SECONDS, seed=1, tls_files=files)
    assert report.faults == []
    assert report.counts["streams"] >= 1
    assert report.counts["honest rounds verified"] >= 1
    assert any(end.startswith("peer_misbehaves") for end in report.ends)
