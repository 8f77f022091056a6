"""What the scheduler knows of the nodes: who is there, how loaded, which attempts they should hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dualpath.calibration.profile import alpha_tokens, beta_tokens
from dualpath.policy.api import UNLIMITED, EngineId, EngineView
from dualpath.scheduler.actions import Peer
from dualpath.wire.control import Fetch, NodeView, RegisterNode
from dualpath.wire.types import Address, Attempt, EngineLoad, NodeStatus, Role

UNHELD_S = 2.0
"""A node that does not hold what it was given, for so long, has lost it."""

_ALWAYS = 2
"""Attempts that a PE has whatever its load."""

STRANGER_S = 1.0
"""A node that holds what it should not, for so long, is told to free it; again after the same time."""


@dataclass
class Duty:
    """An attempt at one engine of a node: what it was given, and whether the node's fetches show it.

    `needed_tokens` is the HBM promise (DE), `new_tokens` what is to be computed (PE), `read_tokens` the
    node's share of the read; `read_shown` once a fetch can have counted that share.
    """

    engine: int
    tokens: int
    needed_tokens: int = 0
    new_tokens: int = 0
    read_tokens: int = 0
    read_answered: bool = False
    read_shown: bool = False
    answered: bool = False
    shown: bool = False
    missing_since: float | None = None


@dataclass
class HeldDiff:
    """`lost`: attempts that the node should hold and does not; `strangers`: the reverse."""

    lost: list[Attempt] = field(default_factory=list)
    strangers: list[Attempt] = field(default_factory=list)


class NodeRecord:
    """One life of a node. Its load is that of its last fetch and what it was given since."""

    def __init__(self, info: RegisterNode, now: float) -> None:
        self.info = info
        self.last_seen = now
        self.duties: dict[Attempt, Duty] = {}
        self.fetch: Fetch | None = None
        self.leaving = False
        """It finishes what it has, and gets nothing new."""
        self.version = 0
        """Changes with what `views` shows."""
        self.alpha_tokens = alpha_tokens(info.speed)
        self.beta_tokens = beta_tokens(info.speed)
        self.snic_tokens_per_s = info.speed.read_tokens_per_s or None
        """What the node says of its speed (paper §5: α, β); None where it does not."""
        self._loads: dict[int, EngineLoad] = {}
        self._strangers: dict[Attempt, float] = {}

    @property
    def name(self) -> str:
        return self.info.node_id

    @property
    def role(self) -> Role:
        return self.info.role

    @property
    def peer(self) -> Peer:
        return Peer("node", self.info.node_id, self.info.incarnation)

    def address(self, engine: int) -> Address:
        return self.info.engines[engine].address

    def give(self, attempt: Attempt, duty: Duty) -> None:
        """An attempt is the node's to serve."""
        self.duties[attempt] = duty
        self.version += 1

    def leave(self) -> None:
        self.leaving = True
        self.version += 1

    def give_read(self, attempt: Attempt, tokens: int) -> None:
        """So many tokens of an attempt that it has are the node's to read."""
        self.duties[attempt].read_tokens = tokens
        self.version += 1

    def take_back(self, attempt: Attempt) -> bool:
        """An attempt is the node's no longer; returns whether it was."""
        self.version += 1
        return self.duties.pop(attempt, None) is not None

    def listen_anew(self, now: float) -> None:
        """Nobody heard the node until now: neither its silence nor what it lacked has lasted longer."""
        self.last_seen = now
        for duty in self.duties.values():
            if duty.missing_since is not None:
                duty.missing_since = now

    def take_fetch(self, fetch: Fetch, now: float) -> HeldDiff:
        """Believe a fetch, unless a newer one was there; compare what it holds with what it should."""
        self.last_seen = now
        if self.fetch is not None and fetch.number <= self.fetch.number:
            return HeldDiff()
        self.fetch = fetch
        self.version += 1
        self._loads = {load.index: load for load in fetch.engines}
        held = set(fetch.held)
        return HeldDiff(
            lost=[a for a, duty in self.duties.items() if self._lacks(duty, a in held, now)],
            strangers=self._take_strangers(held, now),
        )

    def _lacks(self, duty: Duty, is_held: bool, now: float) -> bool:
        duty.read_shown = duty.read_shown or duty.read_answered
        if is_held:
            duty.shown, duty.missing_since = True, None
            return False
        if not (duty.answered or duty.shown):
            return False
        if duty.missing_since is None:
            duty.missing_since = now
        return now - duty.missing_since >= UNHELD_S

    def _take_strangers(self, held: set[Attempt], now: float) -> list[Attempt]:
        seen = {a: self._strangers.get(a, now) for a in held if a not in self.duties}
        due = [a for a, since in seen.items() if now - since >= STRANGER_S]
        self._strangers = seen | dict.fromkeys(due, now)
        return due

    def views(self, beta: int = UNLIMITED) -> Iterator[EngineView]:
        """Its engines, once a first fetch has opened them. `beta` is that of a PE whose node does not say its own.

        A PE always has two attempts: one loads while one computes. With more, it gets nothing while its node has
        more to read into its PE buffer than fits.
        """
        if self.fetch is None:
            return
        read_q, is_prefill = self.read_q, self.role == "prefill"
        of_engine: dict[int, list[Duty]] = {engine.index: [] for engine in self.info.engines}
        for duty in self.duties.values():
            of_engine[duty.engine].append(duty)
        reading = sum(duty.read_tokens for duty in self.duties.values())
        full = is_prefill and reading > self.info.buffer_slots * self.info.block_tokens
        for engine in self.info.engines:
            duties = of_engine[engine.index]
            load = self._loads.get(engine.index) or EngineLoad(
                engine.index, seq=0, tok=0, hbm_free_tokens=engine.hbm_tokens
            )
            since = [duty for duty in duties if not duty.shown]
            tok = load.tok + sum(duty.tokens for duty in since)
            if is_prefill:
                # A PE's HBM is not promised here: it takes the ring of a request when it forms the batch.
                yield EngineView(
                    EngineId(self.name, engine.index),
                    seq=len(duties),
                    tok=tok,
                    read_q=read_q,
                    compute_tok=sum(duty.new_tokens for duty in duties),
                    alpha=UNLIMITED if self.alpha_tokens is None else self.alpha_tokens,
                    beta=beta if self.beta_tokens is None else self.beta_tokens,
                    always=_ALWAYS,
                    open=not self.leaving and (not full or len(duties) < _ALWAYS),
                )
            else:
                yield EngineView(
                    EngineId(self.name, engine.index),
                    seq=load.seq + len(since),
                    tok=tok,
                    read_q=read_q,
                    hbm_free=load.hbm_free_tokens - sum(duty.needed_tokens for duty in since),
                    hbm_total=engine.hbm_tokens,
                    open=not self.leaving,
                )

    @property
    def read_q(self) -> int:
        """Tokens that wait to be read from storage by this node."""
        reported = self.fetch.read_q_tokens if self.fetch else 0
        return reported + sum(d.read_tokens for d in self.duties.values() if not d.read_shown)

    def view(self, now: float) -> NodeView:
        fetch = self.fetch
        return NodeView(
            node_id=self.name,
            role=self.role,
            seconds_since_fetch=max(now - self.last_seen, 0.0),
            engines=fetch.engines if fetch else (),
            status=fetch.status if fetch else NodeStatus(),
        )
