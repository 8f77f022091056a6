"""Experiments as a user starts them: real clusters, a small workload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.wait import until

from dualpath.loadgen.report.results import Experiment, load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SMALL = ("--profile=laptop", "--shapes=1P1D", "--agents=3", "--turns=1", "--repetitions=1")
COMMAND = (sys.executable, "-m", "dualpath.cli.main", "bench")
MACHINE = {"CPU not the limit", "client not the limit", "bottleneck busy"}
"""Gates that a busy machine may fail; the others are about what is right."""


def bench(kind: str, *options: str, out: Path) -> Experiment:
    command = [*COMMAND, kind, *SMALL, *options, "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 4), ended.stdout + ended.stderr
    return load(Path(f"{out}.json"))


def children_of(directory: Path) -> list[int]:
    """Processes whose command line names something in `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
                told = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in words + told:
                found.append(int(entry.name))
    return found


def test_an_experiment_compares_systems_whose_answers_are_right(tmp_path: Path) -> None:
    found = bench("offline", "--systems", "pe-only,dualpath", out=tmp_path / "out")
    assert [run.system for run in found.runs] == ["pe-only", "dualpath"]
    for run in found.runs:
        assert run.turns == run.wanted_turns == 6
        assert [gate for gate in run.gates if not gate.ok and gate.name not in MACHINE] == []
        assert {"answers complete", "answers right", "KV-Cache hit"} <= {g.name for g in run.gates}
        assert run.jct_s >= run.bound_s > 0
        assert run.parts_s["reading"] > 0
        assert any(any(nic.bytes_per_s) for nic in run.nics if nic.nic == "prefill-0.snic")
    single, dual = found.runs
    assert single.hits["prefill"] > 0
    assert single.hits["decode"] == 0
    assert dual.hits["decode"] > 0
    assert single.bounds_s["storage"] == pytest.approx(2 * dual.bounds_s["storage"])
    assert (tmp_path / "out.html").read_text("utf-8").startswith("<!doctype html>")


def test_an_online_experiment_finds_rates_within_the_slo(tmp_path: Path) -> None:
    found = bench("online", "--systems", "dualpath", "--values", "0.2", out=tmp_path / "out")
    # One that a busy machine made invalid is measured once more.
    assert len(found.runs) == (1 if found.runs[0].valid else 2)
    assert all(run.met_slo is not None for run in found.runs)
    counted = [run.met_slo for run in found.runs if run.valid]
    served = bool(counted) and all(counted)
    assert found.capacity == {"dualpath": found.runs[0].x if served else 0.0}
    assert set(found.slo) == {"ttft_s", "tpot_s"}


async def test_whoever_ends_an_experiment_leaves_no_process(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    homes.mkdir()
    with subprocess.Popen(  # noqa: ASYNC220
        [*COMMAND, "offline", *SMALL, "--out", str(tmp_path / "out")],
        env={**os.environ, "TMPDIR": str(homes)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        await until(lambda: len(children_of(homes)) > 6, within_s=120, what="a cluster runs")
        process.send_signal(signal.SIGTERM)
        process.communicate()
        assert process.returncode == 130
    assert children_of(homes) == []
    assert list(homes.iterdir()) == []
