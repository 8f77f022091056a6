"""Where profiles are kept: `HOME/profiles/KEY.json`, a file for each subject."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dualpath.calibration.profile import VERSION, Profile, Subject
from dualpath.model.spec import ModelSpec
from dualpath.settings import Settings
from dualpath.telemetry.logs import get_logger

log = get_logger(__name__)


def subject_of(settings: Settings, spec: ModelSpec) -> Subject:
    """What a node with these settings is, as far as its speed depends on it."""
    snic, cnic = settings.nic_bandwidths
    synthetic = spec.kind == "synthetic"
    engine = (
        msgspec.json.encode(settings.synthetic.model_dump()).decode() if synthetic else spec.kind
    )
    return Subject(
        fingerprint=spec.fingerprint,
        engine=engine,
        device="emulated" if synthetic else settings.device,
        threads=settings.threads,
        cores=os.cpu_count() or 1,
        transport=settings.transport,
        snic_bandwidth=snic,
        cnic_bandwidth=cnic,
    )


def profile_file(home: Path, subject: Subject) -> Path:
    return home / "profiles" / f"{subject.key}.json"


def load_profile(home: Path, subject: Subject) -> Profile | None:
    """The profile that was measured of this subject; None where there is none, or none that this version reads."""
    path = profile_file(home, subject)
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        log.warning(
            "profile not usable; run `dualpath calibrate` again", path=str(path), reason=str(error)
        )
        return None
    if profile.version != VERSION or profile.subject != subject:
        return None
    return profile


def save_profile(home: Path, profile: Profile) -> Path:
    """Put it where nodes of this home look for it, at once and whole. Raises OSError."""
    path = profile_file(home, profile.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(profile)))
    fresh.replace(path)
    return path
