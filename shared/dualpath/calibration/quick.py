"""The profile of a node that starts: one that was measured, what its emulation is made of, or a quick one."""

from __future__ import annotations

from dualpath.calibration.engine import QUICK_S, QUICK_SAMPLE_S, measure_forwards, quick_points
from dualpath.calibration.files import load_profile, subject_of
from dualpath.calibration.fit import Sample, fit_forward, predict
from dualpath.calibration.profile import Profile
from dualpath.model.api import Backend
from dualpath.model.spec import ModelSpec
from dualpath.policy.attention import AttentionFit
from dualpath.settings import Settings, SyntheticProfile
from dualpath.telemetry.logs import get_logger
from dualpath.wire.types import Role

log = get_logger(__name__)


async def profile_of(settings: Settings, spec: ModelSpec, backend: Backend, role: Role) -> Profile:
    """The home's profile where one fits; else a quick one: of a prefill node a few forwards, or what its emulated
    engine is made of, and of NICs the bandwidths that are emulated. Before the engine's loop begins: nothing else may
    use `backend`."""
    subject = subject_of(settings, spec)
    found = load_profile(settings.home, subject)
    if found is None:
        found = await quick_profile(settings, spec, backend, role)
    log.info(
        "profile",
        how=found.how,
        alpha_tokens=found.alpha_tokens,
        beta_tokens=found.beta_tokens,
        error=round(found.forward.error, 3) if found.forward else None,
    )
    return found


async def quick_profile(
    settings: Settings, spec: ModelSpec, backend: Backend, role: Role
) -> Profile:
    """See `profile_of`. Decode nodes compute nothing here: only their reads matter to the scheduler."""
    snic, cnic = settings.nic_bandwidths
    forward, rate = None, 0.0
    if role == "prefill":
        points = quick_points(settings.chunk_tokens, spec.max_context)
        emulated = emulated_fit(settings.synthetic) if spec.kind == "synthetic" else None
        if emulated is None:
            samples = await measure_forwards(
                backend, points, sample_s=QUICK_SAMPLE_S, budget_s=QUICK_S
            )
        else:
            samples = [Sample(*point, predict(emulated, Sample(*point, 0.0))) for point in points]
        forward = emulated or fit_forward(samples)
        rate = max(sample.new / sample.seconds for sample in samples if sample.cached == 0)
    return Profile(
        subject=subject_of(settings, spec),
        how="quick",
        token_bytes=spec.geometry.token_bytes,
        forward=forward,
        compute_tokens_per_s=rate,
        snic_bytes_per_s=snic,
        cnic_bytes_per_s=cnic,
    )


def emulated_fit(engine: SyntheticProfile) -> AttentionFit | None:
    """What a synthetic engine's forwards take, which need not be measured; None where they take no time."""
    if not (engine.forward_s or engine.token_s or engine.attention_s):
        return None
    return AttentionFit(engine.forward_s, engine.token_s, engine.attention_s)
