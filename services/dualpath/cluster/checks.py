"""What is checked before a cluster starts anything, each finding a sentence."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from dualpath.cluster.home import Home
from dualpath.kvstore.making import require_s3
from dualpath.policy.bottleneck import BottleneckReport, bottleneck_free
from dualpath.settings import Settings
from dualpath.transport.rdma import nixl
from dualpath.transport.tls import Tls

HOME_BYTES = 1 << 20
"""What a home must have room for beside models and blocks: settings, records, the beginning of the logs."""
_PAPER_DRAM_TO_SNIC = 10.0


class CannotStart(Exception):
    """What was asked for cannot be started; the text has one sentence per line. Nothing was started."""


def check_settings(settings: Settings) -> Iterator[str]:
    """Settings that are for services started by hand, not for a local cluster."""
    if settings.shard_addresses:
        yield (
            "shard_addresses is set, but `dualpath up` starts its own shards; leave it out "
            "(`dualpath serve` takes it)"
        )
    if settings.transport == "rdma" and find_spec(nixl.MODULE) is None:
        yield (
            "transport is rdma, but NIXL is not installed: run pip install 'dualpath[rdma]', or set "
            "transport to tcp"
        )
    if settings.store == "s3":
        try:
            require_s3()
        except ValueError as error:
            yield str(error)
    try:
        Tls.of(settings)
    except ValueError as error:
        yield str(error)
    try:
        wildcard = ip_address(settings.host).is_unspecified
    except ValueError:
        wildcard = False
    if wildcard:
        yield (
            f"host {settings.host} is no address that processes can announce to each other; "
            "set the address of one network interface, or leave host out"
        )


def check_home(home: Home) -> Iterator[str]:
    """Makes the home's directories, and a file in it."""
    try:
        home.create()
        probe = home.run / ".writable"
        try:
            probe.write_bytes(bytes(HOME_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        free = "free some room there, or " if error.errno == errno.ENOSPC else ""
        yield f"home {home.root} cannot be written ({error.strerror}); {free}choose another --home"
        return
    for path in (home.lock_file, home.record_file, home.settings_file, home.nats_file):
        if path.is_dir():
            yield f"{path} is a directory, but a file belongs there; remove it"


def check_ports(settings: Settings) -> Iterator[str]:
    """The host must be this machine's, and the API's ports free."""
    first, count = settings.port, settings.gateways if settings.port else 1
    for port in range(first, first + count):
        try:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            with socket.create_server((settings.host, port), family=family):
                continue
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield (
                    f"port {port} on {settings.host} is in use; choose another with --port, "
                    "or --port 0 for any free one"
                )
            elif error.errno == errno.EACCES:
                yield f"port {port} needs privileges that this user lacks; choose one above 1023"
            else:
                yield f"host {settings.host} cannot be bound ({error}); set an address of this machine"


def bottleneck_line(settings: Settings) -> str | None:
    """The check of the paper's §3 for the cluster's shape; None where NICs are not paced, which limits none."""
    if None in settings.nic_bandwidths:
        return None
    return f"bottleneck check (paper §3): {bottleneck_report(settings).sentence()}"


def bottleneck_report(settings: Settings) -> BottleneckReport:
    """As `bottleneck_line`, for programs. SNIC = CNIC where not both bandwidths are set."""
    snic, cnic = settings.nic_bandwidths
    if snic is None or cnic is None:
        ratio, dram = 1.0, _PAPER_DRAM_TO_SNIC
    else:
        ratio, dram = snic / cnic, settings.dram_bandwidth / snic
    return bottleneck_free(settings.prefill, settings.decode, settings.engines, ratio, dram)


def memory_note(settings: Settings, meminfo: Path = Path("/proc/meminfo")) -> str | None:
    """A warning where the buffers, once full, exceed the memory that is available now."""
    wanted = settings.prefill * settings.prefill_buffer + settings.decode * settings.decode_buffer
    if settings.device != "cuda":
        wanted += settings.engines * (
            settings.prefill * settings.prefill_hbm + settings.decode * settings.decode_hbm
        )
    try:
        lines = meminfo.read_text("ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
            if wanted > available:
                return (
                    f"buffers and KV memory may grow to {wanted / 2**30:.1f} GiB in total, and "
                    f"{available / 2**30:.1f} GiB are available; lower prefill_buffer, decode_buffer, "
                    "prefill_hbm or decode_hbm, or start fewer nodes"
                )
    return None
