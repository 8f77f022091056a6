"""`dualpath calibrate` measures a real shard, real sockets and an engine, and nodes find what it kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dualpath.calibration.files import load_profile, subject_of
from dualpath.cli.calibrate import calibrate
from dualpath.cli.words import WRONG_USE
from dualpath.model.spec import load_spec
from dualpath.settings import load_settings

GIVEN = {
    "model": "synthetic",
    "snic_bandwidth": "20MB/s",
    "cnic_bandwidth": "40MB/s",
}


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_measured_is_kept_for_the_nodes_of_the_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    given = GIVEN | {"home": tmp_path}
    assert calibrate(None, given, seconds=0.3, as_json=as_json) == 0
    printed = capsys.readouterr().out
    settings = load_settings(None, **given)
    spec = load_spec(settings)
    profile = load_profile(tmp_path, subject_of(settings, spec))
    assert profile is not None
    assert profile.how == "full"
    assert profile.forward is not None
    # Pacing is a bound: NICs are never faster than they are emulated.
    assert profile.snic_bytes_per_s is not None
    assert 0 < profile.snic_bytes_per_s < 1.1 * 20e6
    assert profile.cnic_bytes_per_s is not None
    assert 0 < profile.cnic_bytes_per_s < 1.1 * 40e6
    assert profile.decode_step_s[0][0] == 1
    if as_json:
        document = json.loads(printed)
        assert document["alpha_tokens"] == profile.alpha_tokens
        assert Path(document["file"]).is_file()
    else:
        assert f"{profile.beta_tokens:,} tokens" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "profiles"]


def test_settings_that_cannot_be_measured_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"model": "synthetic", "mode": "oracle", "home": tmp_path}
    assert calibrate(None, given, seconds=0.1, as_json=False) == WRONG_USE
    assert "no NICs to measure" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
