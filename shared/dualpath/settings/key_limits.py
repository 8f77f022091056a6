"""What single API keys may use."""

from __future__ import annotations

from pydantic import BaseModel, Field


class KeyLimits(BaseModel, extra="forbid"):
    """What one API key may use of each gateway."""

    requests: int | None = Field(
        None, ge=1, description="Requests at a time. Default: `max_requests_per_key`"
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        description="Tokens of prompts and answers; beyond it 429. Default: `tokens_per_minute_per_key`",
    )
    weight: float = Field(
        1.0, gt=0, le=1000, description="Its share where requests of several keys wait, by tokens"
    )
