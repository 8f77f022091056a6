"""Profiles: what the policies make of them, and where they are kept."""

from pathlib import Path

import msgspec
import pytest

from dualpath.calibration.files import load_profile, profile_file, save_profile, subject_of
from dualpath.calibration.profile import Profile, Subject
from dualpath.model.spec import load_spec
from dualpath.policy.attention import AttentionFit
from dualpath.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(model="synthetic", home=tmp_path, snic_bandwidth=50_000_000)


@pytest.fixture
def subject(settings: Settings) -> Subject:
    return subject_of(settings, load_spec(settings))


def profile(subject: Subject, **changes: object) -> Profile:
    made = Profile(
        subject=subject,
        how="full",
        token_bytes=2000,
        forward=AttentionFit(0.001, 1e-5, 2e-9, error=0.1),
        compute_tokens_per_s=20_000.0,
        snic_bytes_per_s=50e6,
    )
    return msgspec.structs.replace(made, **changes)


def test_alpha_is_three_seconds_of_reads_and_beta_five_of_compute(subject: Subject) -> None:
    made = profile(subject)
    assert made.alpha_tokens == 75_000
    assert made.beta_tokens == 100_000


def test_what_is_not_known_gives_no_threshold(subject: Subject) -> None:
    made = profile(subject, snic_bytes_per_s=None, compute_tokens_per_s=0.0)
    assert made.alpha_tokens is None
    assert made.beta_tokens is None


def test_the_quota_counts_only_what_grows_with_pairs(subject: Subject) -> None:
    attention = profile(subject).attention
    assert attention is not None
    assert (attention.fixed_s, attention.per_token_s) == (0, 0)
    assert attention.per_pair_s == 2e-9
    assert profile(subject, forward=AttentionFit(0.001, 1e-5, 0.0)).attention is None
    assert profile(subject, forward=None).attention is None


def test_a_profile_is_found_again(settings: Settings, subject: Subject) -> None:
    made = profile(subject, decode_step_s=((1, 0.002), (2, 0.003)))
    path = save_profile(settings.home, made)
    assert path == profile_file(settings.home, subject)
    assert load_profile(settings.home, subject) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 1},
        {"snic_bandwidth": 60_000_000},
        {"cnic_bandwidth": 1_000_000},
        {"block_tokens": 32},
        {"synthetic": {"token_s": 1.0}},
    ],
)
def test_another_nodes_profile_is_not_taken(
    settings: Settings, subject: Subject, changes: dict[str, object]
) -> None:
    save_profile(settings.home, profile(subject))
    other = Settings(**(settings.model_dump(exclude_none=True) | changes))
    assert load_profile(other.home, subject_of(other, load_spec(other))) is None


def test_a_profile_that_cannot_be_read_is_as_none(settings: Settings, subject: Subject) -> None:
    assert load_profile(settings.home, subject) is None
    path = save_profile(settings.home, profile(subject, version=0))
    assert load_profile(settings.home, subject) is None
    path.write_bytes(b"{")
    assert load_profile(settings.home, subject) is None
