"""`dualpath calibrate`: measures this machine as a node, and keeps what it finds for the nodes of a home."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dualpath.calibration.engine import (
    FULL_SAMPLE_S,
    decode_batches,
    forward_points,
    measure_decode,
    measure_forwards,
)
from dualpath.calibration.files import save_profile, subject_of
from dualpath.calibration.fit import Sample, fit_forward, predict
from dualpath.calibration.nics import ByteRegion, NotMeasured, measure_reads, measure_writes, volume
from dualpath.calibration.profile import ALPHA_S, BETA_S, QUOTA_S, Profile
from dualpath.cli.started import ends_in_order
from dualpath.cli.tables import new_table, readable_size
from dualpath.cli.words import INTERRUPTED, WRONG_USE, complain
from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import write_private
from dualpath.kvstore.shards import ShardStore, parse_shard
from dualpath.lanes.build import nic_of
from dualpath.model.api import Backend, ModelError
from dualpath.model.backends import load_backend
from dualpath.model.locate import resolve_dtype
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import (
    CONFIG_VARIABLE,
    ENV_PREFIX,
    Settings,
    dump_settings,
    load_settings,
    short_path,
)
from dualpath.telemetry.logs import configure_logging
from dualpath.transport.api import TransportError
from dualpath.transport.making import make_endpoint
from dualpath.wire.types import Address

FAILED = 1
_DECODE_CONTEXT = 512
_PIECE = 4 << 20


def calibrate(
    config: Path | None, given: Mapping[str, Any], *, seconds: float, as_json: bool
) -> int:
    """Exit code: 0 measured, 1 something could not be measured, 2 the settings are wrong, 130 interrupted."""
    try:
        settings = load_settings(config, **given)
        if settings.mode == "oracle":
            raise ValueError("mode oracle has no NICs to measure; use another")
        settings = settings.model_copy(update={"dtype": resolve_dtype(settings)})
    except (ValueError, ModelError) as error:
        complain(str(error))
        return WRONG_USE
    configure_logging("calibrate", fmt="console", level="warning")
    console = Console(stderr=True, highlight=False)
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with ends_in_order():
            profile, samples = asyncio.run(_measure(settings, seconds, console))
        path = save_profile(settings.home, profile)
    except KeyboardInterrupt:
        complain("interrupted: nothing is kept of what was measured")
        return INTERRUPTED
    except (ModelError, NotMeasured, TransportError, ChildFailed, OSError) as error:
        complain(f"not calibrated: {error}")
        return FAILED
    if as_json:
        print(as_document(profile, path))
    else:
        show(profile, samples, path, Console(highlight=False))
    return 0


async def _measure(
    settings: Settings, seconds: float, console: Console
) -> tuple[Profile, list[Sample]]:
    with tempfile.TemporaryDirectory(prefix="calibrate-", dir=settings.home) as scratch:
        # Blocks are read from the disk that the cluster's own will lie on.
        settings = settings.model_copy(update={"secret": settings.secret or secrets.token_hex(32)})
        spec = await _prepared(settings, Path(scratch), console)
        snic = await _measure_snic(settings, spec, Path(scratch), console)
    cnic = await _measure_cnic(settings, console)
    backend = await asyncio.to_thread(load_backend, spec, settings)
    try:
        samples, steps = await _measure_engine(backend, settings, spec, seconds, console)
    finally:
        backend.close()
    at_once = [sample for sample in samples if sample.cached == 0]
    profile = Profile(
        subject=subject_of(settings, spec),
        how="full",
        token_bytes=spec.geometry.token_bytes,
        forward=fit_forward(samples),
        compute_tokens_per_s=max(sample.new / sample.seconds for sample in at_once),
        snic_bytes_per_s=snic,
        cnic_bytes_per_s=cnic,
        decode_step_s=tuple(steps),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return profile, samples


async def _prepared(settings: Settings, scratch: Path, console: Console) -> ModelSpec:
    """The model's files are made where they are missing. Raises ModelError."""
    _busy(console, "model")
    write_private(scratch / "settings.json", dump_settings(settings))
    command = [sys.executable, "-m", "dualpath.model.prepare"]
    made = await asyncio.to_thread(
        subprocess.run, command, env=_env(scratch), capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise ModelError(made.stderr.strip() or made.stdout.strip() or "the model was not made")
    spec = await asyncio.to_thread(load_spec, settings)
    console.print(f"model   {spec.name} ({spec.dtype})")
    return spec


async def _measure_snic(
    settings: Settings, spec: ModelSpec, scratch: Path, console: Console
) -> float:
    """Reads from a shard that is a process of its own, through an SNIC as a node has it."""
    _busy(console, "SNIC")
    alone = settings.model_copy(
        update={
            "home": scratch,
            "shard_addresses": (),
            "store_replicas": 1,
            "shards": 1,
            "store": "shards",
            "store_directory": None,
        }
    )
    write_private(scratch / "settings.json", dump_settings(alone))
    child = Child("storage-0", "storage", lambda line: None)
    command = [sys.executable, "-m", "dualpath.cli.main", "serve", "storage"]
    child.start([*command, "--name", "storage-0"], _env(scratch))
    nic = nic_of(settings, "calibrate.snic", settings.snic_bandwidth)
    endpoint = make_endpoint(settings, "calibrate.snic", nic, fingerprint=spec.fingerprint)
    try:
        try:
            ready = await child.until_ready(settings.start_s)
        except ChildFailed as error:
            raise ChildFailed("\n".join([str(error), *child.tail])) from None
        block = spec.geometry.full_block_bytes
        store = ShardStore(
            endpoint,
            [parse_shard(f"storage-0={ready.data}")],
            fingerprint=spec.fingerprint,
            block_bytes=block,
        )
        await endpoint.start(store.on_message)
        try:
            rate = await measure_reads(store, block, volume(settings.snic_bandwidth, block))
        finally:
            await store.close()
    finally:
        await endpoint.close()
        nic.close()
        await child.stop(settings.stop_s)
    console.print(f"SNIC    {readable_size(int(rate))}/s of reads from a shard")
    return rate


async def _measure_cnic(settings: Settings, console: Console) -> float:
    """Writes between two CNICs; both are of this process."""
    _busy(console, "CNIC")

    async def ignore(peer: Address, message: bytes) -> None:
        return

    nics = [nic_of(settings, f"calibrate.cnic{i}", settings.cnic_bandwidth) for i in range(2)]
    ends = [make_endpoint(settings, nic.name, nic, number=1) for nic in nics]
    region = ByteRegion(_PIECE * volume(settings.cnic_bandwidth, 4 * _PIECE) // 4)
    try:
        for end in ends:
            await end.start(ignore)
        key = ends[1].register(region)
        rate = await measure_writes(ends[0], ends[1].address, key, region.nbytes)
    finally:
        for end, nic in zip(ends, nics, strict=True):
            await end.close()
            nic.close()
    console.print(f"CNIC    {readable_size(int(rate))}/s of writes between engines")
    return rate


async def _measure_engine(
    backend: Backend, settings: Settings, spec: ModelSpec, seconds: float, console: Console
) -> tuple[list[Sample], list[tuple[int, float]]]:
    points = forward_points(settings.chunk_tokens, spec.max_context)
    done: list[Sample] = []

    def on_sample(sample: Sample) -> None:
        done.append(sample)
        _busy(console, f"forward {len(done)} of {len(points)} points")

    samples = await measure_forwards(
        backend, points, sample_s=FULL_SAMPLE_S, budget_s=seconds, on_sample=on_sample
    )
    left = len(points) - len(samples)
    hint = f"; {left} would have taken longer than --seconds {seconds:g}" if left else ""
    console.print(f"forward {len(samples)} of {len(points)} points{hint}")
    context = min(_DECODE_CONTEXT, spec.max_context // 2)
    largest = max(settings.decode_hbm // spec.geometry.flat_bytes(context + 64), 1)
    batches = list(decode_batches(min(32, largest)))
    steps = await measure_decode(backend, batches, context=context)
    console.print(f"decode  {len(steps)} batches")
    return samples, steps


def _busy(console: Console, what: str) -> None:
    """What goes on, where somebody looks; the next line takes its place."""
    if console.is_terminal:
        console.print(f"{what} …", end="\r")


def _env(scratch: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(ENV_PREFIX)}
    return kept | {CONFIG_VARIABLE: str(scratch / "settings.json"), "PYTHONUNBUFFERED": "1"}


# ── what is shown ──────────────────────────────────────────────────────────────────────────────────
def as_document(profile: Profile, path: Path) -> str:
    """The profile, and what the policies make of it."""
    document = {
        "file": str(path),
        "alpha_tokens": profile.alpha_tokens,
        "beta_tokens": profile.beta_tokens,
        "quota_s": QUOTA_S,
        "profile": profile,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def show(profile: Profile, samples: list[Sample], path: Path, console: Console) -> None:
    fit = profile.forward
    assert fit is not None, "measured in full"
    table = new_table(
        "Prefill forwards", "cached", "new", "measured", "fitted", "fit / measured", numbers=5
    )
    for sample in samples:
        fitted = predict(fit, sample)
        table.add_row(
            f"{sample.cached:,}",
            f"{sample.new:,}",
            f"{sample.seconds * 1e3:,.2f} ms",
            f"{fitted * 1e3:,.2f} ms",
            f"{fitted / sample.seconds:.2f}",
        )
    console.print(table)
    console.print(
        f"fit     {fit.fixed_s * 1e3:.3g} ms + {fit.per_token_s * 1e6:.3g} µs · new + "
        f"{fit.per_pair_s * 1e9:.3g} ns · pairs; off by {fit.error:.0%} at most"
    )
    steps = new_table("Decode steps", "requests", "step", "tokens/s", numbers=3)
    for batch, seconds in profile.decode_step_s:
        steps.add_row(f"{batch}", f"{seconds * 1e3:.2f} ms", f"{batch / seconds:,.0f}")
    console.print(steps)
    console.print(
        f"α       {profile.alpha_tokens:,} tokens: what the SNIC reads in {ALPHA_S:g} s\n"
        f"β       {profile.beta_tokens:,} tokens: what an engine computes in {BETA_S:g} s, at "
        f"{profile.compute_tokens_per_s:,.0f} tokens/s\n"
        f"quota   {QUOTA_S * 1e3:g} ms of attention per forward{_quota_words(profile)}\n"
        f"kept in {short_path(path)}, which nodes of this home use from their next start on"
    )


def _quota_words(profile: Profile) -> str:
    attention = profile.attention
    if attention is None:
        return "; too small to be told from the rest here, so chunk_tokens alone bounds forwards"
    pairs = QUOTA_S / attention.per_pair_s
    return f": {pairs:,.0f} pairs, a first chunk of {int((2 * pairs) ** 0.5):,} tokens"
