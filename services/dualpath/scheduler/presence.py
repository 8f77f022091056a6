"""Who comes and goes: registrations, fetches, silence. Pure."""

from __future__ import annotations

from dualpath.blocks import Phase
from dualpath.scheduler.actions import Forget
from dualpath.scheduler.desk import Desk
from dualpath.scheduler.members import GatewayRecord
from dualpath.scheduler.nodes import NodeRecord
from dualpath.wire import control
from dualpath.wire.codec import Message


class Presence:
    """Keeps `desk.members` true. What a lost member held is ended at once."""

    def __init__(self, desk: Desk, incarnation: str, now: float) -> None:
        self._desk = desk
        self.incarnation = incarnation
        self._role_missing_since: float | None = now

    def register_node(self, message: control.RegisterNode, now: float) -> Message:
        known = self._desk.members.nodes.get(message.node_id)
        if known is not None and known.info.incarnation != message.incarnation:
            self.lose_node(known, "it was started anew", now)
            known = None
        if (objection := self._desk.members.objection(message)) is not None:
            self._desk.note("warning", "node refused", node=message.node_id, reason=objection)
            return control.Refused(objection, code="incompatible")
        if known is not None:
            known.last_seen = now
            return control.Registered(self.incarnation)
        self._desk.members.nodes[message.node_id] = NodeRecord(message, now)
        self._desk.note("info", "node registered", node=message.node_id, role=message.role)
        self._look_for_roles(now)
        return control.Registered(self.incarnation)

    def leave_node(self, message: control.LeaveNode, now: float) -> Message:
        """Nothing new for it; and once it has finished what it was given, it is gone."""
        node = self._desk.members.nodes.get(message.node_id)
        if node is None or node.info.incarnation != message.incarnation:
            return control.Refused(f"{message.node_id} is not registered here", code="unknown")
        if not node.leaving:
            node.leave()
            self._desk.note("info", "node leaves", node=node.name, attempts=len(node.duties))
        if node.duties:
            return control.Refused(
                f"{node.name} has {len(node.duties)} attempts to finish", code="busy"
            )
        del self._desk.members.nodes[node.name]
        self._desk.note("info", "node left", node=node.name)
        self._look_for_roles(now)
        return control.Ok()

    def register_gateway(self, message: control.RegisterGateway, now: float) -> Message:
        known = self._desk.members.gateways.get(message.gateway_id)
        if known is not None and known.info.incarnation != message.incarnation:
            self._lose_gateway(known, "it was started anew", now)
            known = None
        if (objection := self._desk.members.objection(message)) is not None:
            self._desk.note(
                "warning", "gateway refused", gateway=message.gateway_id, reason=objection
            )
            return control.Refused(objection, code="incompatible")
        if known is None:
            self._desk.members.gateways[message.gateway_id] = GatewayRecord(message, now)
            self._desk.note("info", "gateway registered", gateway=message.gateway_id)
        else:
            known.last_seen = now
        return control.Registered(self.incarnation)

    def fetch(self, message: control.Fetch, now: float) -> Message:
        node = self._desk.members.nodes.get(message.node_id)
        if node is None or node.info.incarnation != message.incarnation:
            return control.Refused(
                f"{message.node_id} is not registered here; register again", code="unknown"
            )
        diff = node.take_fetch(message, now)
        for attempt in diff.lost:
            reason = f"{node.name} no longer holds what it was given"
            self._desk.fail(self._desk.book.records[attempt], "unheld", reason, now)
        for attempt in diff.strangers:
            if (
                attempt not in self._desk.book.records
                and self._desk.book.ended(attempt) is not Phase.DONE
            ):
                self._desk.abort(node.peer, attempt, "the scheduler does not know this attempt")
        return control.Registered(self.incarnation)

    def lose_node(self, node: NodeRecord, reason: str, now: float) -> None:
        """All that it held is lost, and what others hold for the same attempts is to be freed."""
        self._desk.note("warning", "node lost", node=node.name, reason=reason)
        del self._desk.members.nodes[node.name]
        self._desk.actions.append(Forget(node.peer))
        for attempt in list(node.duties):
            self._desk.fail(
                self._desk.book.records[attempt], "node_lost", f"{node.name} is lost: {reason}", now
            )
        self._look_for_roles(now)

    def _lose_gateway(self, gateway: GatewayRecord, reason: str, now: float) -> None:
        name = gateway.info.gateway_id
        self._desk.note("warning", "gateway lost", gateway=name, reason=reason)
        del self._desk.members.gateways[name]
        for record in list(self._desk.book.records.values()):
            if record.submit.gateway_id == name:
                text = f"gateway {name} is lost: {reason}"
                # It may only have been slow, and wait for tokens when it is back.
                self._desk.end(
                    record,
                    Phase.CANCELLED,
                    "gateway_lost",
                    text,
                    now,
                    tell_gateway=True,
                    retry=True,
                )

    def _look_for_roles(self, now: float) -> None:
        if self._desk.members.missing_role() is None:
            self._role_missing_since = None
        elif self._role_missing_since is None:
            self._role_missing_since = now

    def unavailable(self, now: float) -> str | None:
        """Why nothing can be served at the moment, once the grace is over."""
        since, role = self._role_missing_since, self._desk.members.missing_role()
        if since is None or role is None or now - since < self._desk.rules.grace_s:
            return None
        return f"no {role} node is registered; start one, or wait until it has loaded its model"

    def listen_anew(self, now: float) -> None:
        """Everybody's silence begins now."""
        for node in self._desk.members.nodes.values():
            node.listen_anew(now)
        for gateway in self._desk.members.gateways.values():
            gateway.last_seen = now

    def lose_the_silent(self, now: float) -> None:
        limit = self._desk.rules.node_lost_s
        for node in list(self._desk.members.nodes.values()):
            if now - node.last_seen > limit:
                self.lose_node(node, f"it was silent for more than {limit:g} s", now)
        # Gateways beat once a second or so, and are busier than nodes' leaders.
        for gateway in list(self._desk.members.gateways.values()):
            if now - gateway.last_seen > 2 * limit:
                self._lose_gateway(gateway, f"it was silent for more than {2 * limit:g} s", now)
