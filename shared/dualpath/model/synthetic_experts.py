"""The expert-parallel traffic of a synthetic engine: an AllToAll per layer, of real bytes (paper §4)."""

from __future__ import annotations

import struct

from dualpath.model.errors import ModelError
from dualpath.transport.collectives import Group

_LABEL = struct.Struct("<QQ")


class ExpertTraffic:
    """Gives each other engine of the group its part of `token_bytes` per token, in every layer of every forward.

    Each piece begins with its sender's rank and the number of its AllToAll, which whoever gets it checks: a group out
    of step, or a piece in the wrong place, shows.
    """

    def __init__(self, group: Group, token_bytes: int) -> None:
        self._group = group
        self._token_bytes = token_bytes
        self._number = 0
        self._piece = bytearray(_LABEL.size)

    async def layer(self, tokens: int) -> None:
        """One AllToAll of `tokens` tokens, 0 for an empty batch; members' tokens differ freely. Raises
        CollectiveError, and ModelError for a piece that does not belong here."""
        nbytes = max(tokens * self._token_bytes // self._group.size, _LABEL.size) if tokens else 0
        if len(self._piece) < nbytes:
            self._piece = bytearray(nbytes)
        _LABEL.pack_into(self._piece, 0, self._group.rank, self._number)
        piece = memoryview(self._piece)[:nbytes]
        for rank, got in enumerate(await self._group.all_to_all([piece] * self._group.size)):
            if len(got) and _LABEL.unpack_from(got) != (rank, self._number):
                raise ModelError(
                    f"engine {self._group.rank} got {_LABEL.unpack_from(got)} in the place of AllToAll "
                    f"{self._number} of engine {rank}: the group is out of step; restart the node"
                )
        self._number += 1
