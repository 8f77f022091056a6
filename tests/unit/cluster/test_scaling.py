from __future__ import annotations

from pathlib import Path

from dualpath.cluster.home import Home
from dualpath.cluster.plan import Service
from dualpath.cluster.scaling import Wanted, missing, surplus, take_asked


def test_missing_nodes_get_names_that_nobody_had() -> None:
    used = ["prefill-0", "prefill-1", "prefill-2"]
    assert missing("prefill", 3, ["prefill-0"], used) == [
        Service("prefill", "prefill-3"),
        Service("prefill", "prefill-4"),
    ]
    assert missing("prefill", 1, ["prefill-0"], used) == []
    assert missing("decode", 1, [], []) == [Service("decode", "decode-0")]


def test_those_that_came_last_leave() -> None:
    working = ["decode-10", "decode-2", "decode-0"]
    assert surplus(1, working) == ["decode-2", "decode-10"]
    assert surplus(3, working) == []


def test_what_was_asked_for_is_taken_once_in_order_and_rubbish_left_out(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    assert take_asked(home) == []
    home.asks.mkdir()
    (home.asks / "2-1.json").write_text('{"leave": ["prefill-1"]}')
    (home.asks / "1-2.json").write_text('{"prefill": 2, "decode": 3}')
    (home.asks / "3-1.json").write_text("{")
    (home.asks / "4-1.json").write_text('{"prefill": -1}')
    (home.asks / "5-1.json").write_text('{"decode": 0}')
    assert take_asked(home) == [Wanted(2, 3), Wanted(leave=("prefill-1",))]
    assert take_asked(home) == []
    assert not list(home.asks.iterdir())


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    (home.asks / "1-1.json").mkdir(parents=True)
    (home.asks / "2-1.json").write_text('{"prefill": 2}')
    assert take_asked(home) == [Wanted(2)]
