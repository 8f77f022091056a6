"""Tables of InfiniBand's VL arbitration, as subnet managers write them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

MAX_ENTRIES = 64
MAX_WEIGHT = 255
MAX_VL = 14
"""VL 15 is for management and not arbitrated."""


def parse_table(text: str) -> tuple[tuple[int, int], ...]:
    """`0:192,2:64` as (VL, weight in units of 64 bytes). Raises ValueError with a sentence."""
    entries = []
    for part in text.split(","):
        vl, colon, weight = part.strip().partition(":")
        if not (colon and vl.isdecimal() and weight.isdecimal()):
            raise ValueError(f"a table is a list of VL:WEIGHT like 0:192,2:64, not {text!r}")
        if int(vl) > MAX_VL or int(weight) > MAX_WEIGHT:
            raise ValueError(
                f"VLs go up to {MAX_VL} and weights to {MAX_WEIGHT}; {part.strip()} goes beyond"
            )
        entries.append((int(vl), int(weight)))
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"a table has at most {MAX_ENTRIES} entries, not {len(entries)}")
    return tuple(entries)


def _checked(text: str) -> str:
    parse_table(text)
    return text


Table = Annotated[str, AfterValidator(_checked)]


class VlArbitration(BaseModel, extra="forbid"):
    """How InfiniBand shares a link; the defaults are the paper's (§4)."""

    high: Table = Field("0:192,1:192,2:0,3:192", description="High-priority table, VL:WEIGHT,...")
    low: Table = Field("0:192,1:192,2:64,3:192", description="Low-priority table, VL:WEIGHT,...")
    high_limit: int = Field(
        240,
        ge=0,
        le=255,
        description="4096 bytes each that the high table sends before the low one may send a packet; "
        "0: one packet, 255: no limit",
    )
    vl_of_high_lane: int = Field(0, ge=0, le=MAX_VL, description="VL of model execution")
    vl_of_low_lane: int = Field(2, ge=0, le=MAX_VL, description="VL of everything else")

    @model_validator(mode="after")
    def _every_lane_is_served(self) -> Self:
        if self.vl_of_high_lane == self.vl_of_low_lane:
            raise ValueError("the two lanes need different VLs")
        served = {vl for vl, weight in parse_table(self.high) + parse_table(self.low) if weight}
        for vl in (self.vl_of_high_lane, self.vl_of_low_lane):
            if vl not in served:
                raise ValueError(f"VL {vl} has no weight in either table and could never send")
        return self
