from pathlib import Path

import pytest
from tests.unit.loadgen.report.made import experiment, run

from dualpath.loadgen.report.compare import changes, comparison_page, differing_settings, text
from dualpath.loadgen.report.results import ReportError, load, save


def test_results_survive_the_file(tmp_path: Path) -> None:
    found = experiment(run("basic", 9.0), run("dualpath", 5.0, x=2.0), axis="x")
    save(found, tmp_path / "deep" / "found.json")
    assert load(tmp_path / "deep" / "found.json") == found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no results"),
        (b"{}", "holds no results"),
        (b"\xff\x00", "holds no results"),
        (b'{"kind": 3}', "holds no results"),
    ],
)
def test_a_file_without_results_is_said_so(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ReportError, match=said):
        load(tmp_path / "x.json")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    save(experiment(run("basic", 9.0)), path)
    path.write_bytes(path.read_bytes().replace(b'"version": 1', b'"version": 99'))
    with pytest.raises(ReportError, match="version 99"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"none\.json cannot be read: No such file"):
        load(tmp_path / "none.json")


def test_changes_are_told_from_the_spread_of_runs() -> None:
    before = experiment(run("basic", 10.0), run("basic", 12.0, repetition=1), run("gone", 5.0))
    after = experiment(run("basic", 5.0), run("basic", 5.5, repetition=1), run("new", 5.0))
    jct = next(change for change in changes(before, after) if change.figure == "jct_s")
    assert (jct.where, jct.before, jct.after) == ("1P1D basic", 11.0, 5.25)
    assert jct.spread == pytest.approx(1.2)
    assert jct.beyond_spread
    same = next(change for change in changes(before, before) if change.figure == "jct_s")
    assert not same.beyond_spread


def test_runs_that_a_gate_failed_are_marked() -> None:
    bad = experiment(run("basic", 10.0, ok=False))
    assert not changes(bad, bad)[0].valid
    assert "(invalid runs)" in "\n".join(text(bad, bad))
    assert "invalid runs" in comparison_page(bad, bad)


def test_what_differs_in_settings_is_said() -> None:
    import msgspec

    before = experiment(run("basic", 10.0))
    changed = msgspec.structs.replace(before.runs[0], settings={"mode": "basic", "prefill": 2})
    after = msgspec.structs.replace(before, runs=(changed,), workload={"agents": 9})
    assert differing_settings(before, after) == [
        ("1P1D basic", "prefill", "None", "2"),
        ("workload", "agents", "8", "9"),
    ]
    assert "1P1D basic: prefill was None, is 2" in text(before, after)


def test_results_without_anything_in_common_are_said_so() -> None:
    one, other = experiment(run("basic", 1.0)), experiment(run("dualpath", 1.0))
    assert text(one, other) == [
        "the two have nothing in common: no run of the same shape, system and place"
    ]
