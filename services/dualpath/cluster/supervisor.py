"""Starts a local cluster, watches it, and stops it: all of `dualpath up`."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from dualpath.cluster import checks
from dualpath.cluster.certificate import make_certificate
from dualpath.cluster.checks import CannotStart
from dualpath.cluster.child import Child, ChildFailed
from dualpath.cluster.home import Home, HomeBusy, write_private
from dualpath.cluster.nats_server import NAME as NATS
from dualpath.cluster.nats_server import start_nats, worth_showing
from dualpath.cluster.output import Console, LogFile
from dualpath.cluster.plan import (
    NodeRole,
    Service,
    meaning_of_loss,
    start_stages,
    stop_stages,
)
from dualpath.cluster.processes import identify
from dualpath.cluster.record import ClusterRecord, ServiceRecord, State, save_record
from dualpath.cluster.scaling import SIGNAL, Scaler, take_asked
from dualpath.cluster.welcome import welcome
from dualpath.memory.admission import check_capacity
from dualpath.model.errors import ModelError
from dualpath.model.locate import NAMED, resolve_dtype
from dualpath.model.spec import ModelSpec, load_spec
from dualpath.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, dump_settings

_PREPARING = "model"
_LONG_S = 2.0
_HASHING = "reading all weights once: their hash is what their KV-Cache is known by"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """One run of a local cluster. Create it on the main thread: its children die with that thread.

    `on_ready` is called once all services are ready; `console` is closed at the end of `run`. `serve` is the
    command that runs one service; it is given ROLE, --name, a gateway's --port, and --ready-fd.
    """

    def __init__(
        self,
        settings: Settings,
        console: Console,
        *,
        on_ready: Callable[[], None] | None = None,
        serve: Sequence[str] = (sys.executable, "-m", "dualpath.cli.main", "serve"),
    ) -> None:
        self._settings = settings
        self._home = Home(settings.home)
        self._console = console
        self._on_ready = on_ready
        self._serve = serve
        self._state: State = "starting"
        self._children: dict[str, Child] = {}
        self._files: list[LogFile] = []
        self._watches: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._early_end = asyncio.Event()
        self._early_failure: ChildFailed | None = None
        self._spec: ModelSpec | None = None
        self._scaler = Scaler(
            self._home, console, self._children, self._start_service, self._on_scale
        )
        self._env = {
            name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)
        } | {CONFIG_VARIABLE: str(self._home.settings_file), "PYTHONUNBUFFERED": "1"}

    async def run(self) -> int:
        """Start, serve until SIGINT, SIGTERM or SIGHUP (or until nothing is left), stop. Returns the exit code: 0
        after a signal, 1 where the start failed or everything died. Raises CannotStart before anything
        was started."""
        if problems := [*checks.check_settings(self._settings), *checks.check_home(self._home)]:
            raise CannotStart("\n".join(problems))
        loop = asyncio.get_running_loop()
        try:
            with self._home.locked():
                for number in _STOP_SIGNALS:
                    loop.add_signal_handler(number, self._on_signal)
                loop.add_signal_handler(SIGNAL, self._scaler.wake)
                try:
                    return await self._run()
                finally:
                    for number in (*_STOP_SIGNALS, SIGNAL):
                        loop.remove_signal_handler(number)
                    # A command that has just read the record may still send it: that would be death otherwise.
                    signal.signal(SIGNAL, signal.SIG_IGN)
                    self._home.record_file.unlink(missing_ok=True)
        except HomeBusy as error:
            raise CannotStart(str(error)) from None
        finally:
            self._console.close()

    async def _run(self) -> int:
        problems = list(checks.check_ports(self._settings))
        if problems:
            raise CannotStart("\n".join(problems))
        take_asked(self._home)  # What an earlier cluster was asked for and did not live to do.
        self._record()
        try:
            if not await self._start_unless_stopped():
                return 0
            self._state = "ready"
            self._record()
            self._console.say(welcome(self._record_now(), self._settings))
            if self._on_ready is not None:
                self._on_ready()
            async with asyncio.TaskGroup() as group:
                scaling = group.create_task(self._scaler.run(), name="scaling")
                await self._stop.wait()
                scaling.cancel()
            everything_died = all(c.exit_status is not None for c in self._children.values())
            return 1 if everything_died else 0
        except ChildFailed as error:
            self._console.alarm(f"the cluster did not start: {error}")
            return 1
        finally:
            await self._stop_all()

    def _on_scale(self, counts: Mapping[NodeRole, int]) -> None:
        self._update(prefill=counts["prefill"], decode=counts["decode"])
        # Of a role whose nodes have all died there may be none.
        if all(counts.values()) and (line := checks.bottleneck_line(self._settings)):
            self._console.say(line)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._console.say("second signal: killing all processes")
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        self._stop.set()

    # ── start ──────────────────────────────────────────────────────────────────────────────────────
    async def _start_unless_stopped(self) -> bool:
        """False where a signal came first. Raises CannotStart, ChildFailed."""
        starting = asyncio.create_task(self._start(), name="start of the cluster")
        others = [asyncio.create_task(event.wait()) for event in (self._stop, self._early_end)]
        try:
            await asyncio.wait({starting, *others}, return_when=asyncio.FIRST_COMPLETED)
            if self._early_failure is not None:
                raise self._early_failure
            if not starting.done():
                return False
            starting.result()
            return True
        finally:
            for task in (starting, *others):
                task.cancel()
            await asyncio.gather(starting, *others, return_exceptions=True)

    async def _start(self) -> None:
        if self._settings.tls and self._settings.tls_certificate is None:
            self._settings = make_certificate(self._home, self._settings)
        spec = self._spec = await self._prepare_model()
        await self._start_nats()
        for stage in start_stages(self._settings):
            # Whatever comes later is told what the shards said of themselves.
            write_private(self._home.settings_file, dump_settings(self._settings))
            self._console.say(f"starting {', '.join(service.name for service in stage)}")
            await self._start_stage(stage)
            if shards := [service for service in stage if service.role == "storage"]:
                self._update(shard_addresses=tuple(self._shard_addresses(shards)))
        self._console.say(f"all processes are ready; serving {spec.name} ({spec.dtype})")

    async def _prepare_model(self) -> ModelSpec:
        """Make the model's files, and see that the cluster can hold one request of its longest context."""
        settings = self._settings
        self._update(dtype=resolve_dtype(settings))
        write_private(self._home.settings_file, dump_settings(self._settings))
        if settings.model in NAMED:
            await self._make_model()
        long = asyncio.get_running_loop().call_later(_LONG_S, self._console.say, _HASHING)
        try:
            spec = await asyncio.to_thread(load_spec, self._settings)
        except ModelError as error:
            raise CannotStart(str(error)) from None
        finally:
            long.cancel()
        if problems := check_capacity(self._settings, spec.geometry, spec.max_context):
            raise CannotStart("\n".join(problems))
        if line := checks.bottleneck_line(settings):
            self._console.say(line)
        if note := checks.memory_note(settings):
            self._console.say(f"note: {note}")
        return spec

    async def _make_model(self) -> None:
        child = self._make_child(_PREPARING, _PREPARING)
        child.start([sys.executable, "-m", "dualpath.model.prepare"], self._env, says_ready=False)
        try:
            if await child.join():
                # What came before it has been shown.
                raise CannotStart(
                    child.tail[-1] if child.tail else f"the model {child.how_it_ended}"
                )
        finally:
            await child.stop(1.0)
            del self._children[_PREPARING]

    async def _start_nats(self) -> None:
        settings = self._settings
        self._update(secret=settings.secret or secrets.token_hex(32))
        if settings.nats_url is not None:
            return
        started = time.monotonic()
        child, access = await start_nats(
            self._home,
            settings.host,
            secrets.token_hex(24),
            self._env,
            lambda: self._make_child(NATS, NATS),
            settings.start_s,
        )
        self._watch(child)
        self._update(nats_url=access.url, nats_user=access.user, nats_password=access.password)
        self._report_ready(child, started)

    async def _start_stage(self, stage: Iterable[Service]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for service in stage:
                    group.create_task(self._start_service(service))
        except* ChildFailed as failures:
            raise failures.exceptions[0] from None

    async def _start_service(self, service: Service) -> None:
        command = [*self._serve, service.role, "--name", service.name]
        if service.port is not None:
            command += ["--port", str(service.port)]
        child = self._make_child(service.name, service.role)
        started = time.monotonic()
        try:
            child.start(command, self._env)
        except OSError:
            # It is no process that could be waited for, or counted.
            del self._children[service.name]
            raise
        self._watch(child)
        try:
            await child.until_ready(self._settings.start_s)
        except ChildFailed as error:
            words = "\n".join(f"  {line}" for line in child.tail)
            raise ChildFailed(f"{error}; its last words:\n{words}") from None
        self._report_ready(child, started)

    def _make_child(self, name: str, role: str) -> Child:
        file = LogFile(self._home.log_file(name), self._settings.log_bytes)
        self._files.append(file)

        def take(line: str) -> None:
            file.write(line)
            if role != NATS or worth_showing(line):
                self._console.line(name, line)

        child = self._children[name] = Child(name, role, take)
        return child

    def _report_ready(self, child: Child, started: float) -> None:
        self._console.say(f"✓ {child.name} is ready after {time.monotonic() - started:.1f} s")
        self._record()

    def _shard_addresses(self, stage: Iterable[Service]) -> Iterable[str]:
        for service in stage:
            ready = self._children[service.name].ready
            assert ready is not None
            if ready.data is None:
                raise ChildFailed(f"{service.name} did not say at which address it serves")
            yield f"{service.name}={ready.data}"

    def _update(self, **changes: object) -> None:
        self._settings = self._settings.model_copy(update=changes)

    # ── watch ──────────────────────────────────────────────────────────────────────────────────────
    def _watch(self, child: Child) -> None:
        self._watches.append(
            asyncio.create_task(self._until_end(child), name=f"watch of {child.name}")
        )

    async def _until_end(self, child: Child) -> None:
        await child.join()
        if self._state == "stopping" or self._stop.is_set():
            return
        self._record()
        if self._state == "starting":
            # One that was not ready yet is told, with its last words, by whoever waits for it.
            if child.ready is not None or child.role == NATS:
                self._early_failure = ChildFailed(
                    f"{child.name} {child.how_it_ended} during the start"
                )
                self._early_end.set()
            return
        if child.role in ("prefill", "decode") and child.exit_status == 0:
            self._console.say(f"{child.name} has left the cluster")
            return
        left = sum(
            other.role == child.role and other.exit_status is None
            for other in self._children.values()
        )
        self._console.alarm(
            f"✗ {child.name} (pid {child.identity.pid}) {child.how_it_ended}; it is not restarted: "
            f"{meaning_of_loss(child.role, left)}. Its log: {self._home.log_file(child.name)}"
        )
        if all(other.exit_status is not None for other in self._children.values()):
            self._console.alarm("no process is left; the cluster ends")
            self._stop.set()

    # ── stop ───────────────────────────────────────────────────────────────────────────────────────
    async def _stop_all(self) -> None:
        """End all processes within `stop_s`, stage by stage."""
        self._state = "stopping"
        if self._children:
            self._record()
            self._console.say("stopping")
        began = time.monotonic()
        for stage, share in stop_stages({c.name: c.role for c in self._children.values()}):
            limit = began + self._settings.stop_s * share - time.monotonic()
            results = await asyncio.gather(
                *(self._children[name].stop(max(limit, 0.0)) for name in stage)
            )
            killed = [name for name, in_time in zip(stage, results, strict=True) if not in_time]
            if killed:
                self._console.say(f"killed, as they did not stop in time: {', '.join(killed)}")
        await asyncio.gather(*self._watches)
        if self._children:
            self._console.say(f"stopped after {time.monotonic() - began:.1f} s")
        for file in self._files:
            file.close()
            if file.lost:
                self._console.alarm(f"{file.lost} lines could not be written to {file.path}")

    # ── record ─────────────────────────────────────────────────────────────────────────────────────
    def _record(self) -> None:
        save_record(self._home, self._record_now())

    def _record_now(self) -> ClusterRecord:
        this = identify(os.getpid())
        assert this is not None, "this process lives"
        settings = self._settings
        return ClusterRecord(
            supervisor=this,
            state=self._state,
            model=self._spec.name if self._spec else settings.model,
            mode=settings.mode,
            nats_url=settings.nats_url or "",
            stop_s=settings.stop_s,
            services=tuple(
                ServiceRecord(c.name, c.role, c.identity, c.ready, c.exit_status)
                for c in self._children.values()
                if c.started
            ),
        )
