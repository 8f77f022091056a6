"""The OpenAI-compatible HTTP service: owns every request from its arrival to its last token."""

from dualpath.gateway.service import GatewayService

__all__ = ["GatewayService"]
