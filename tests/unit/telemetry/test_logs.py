from __future__ import annotations

import json
import logging

import pytest
import structlog

from dualpath.telemetry.logs import configure_logging, get_logger, request_context
from dualpath.wire.types import Attempt


@pytest.fixture(autouse=True)
def _restore() -> object:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_name_service_logger_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("scheduler", fmt="json", level="info")
    log = get_logger("dualpath.scheduler.core")
    log.debug("not shown")
    with request_context(Attempt("r1", 2)):
        log.info("placed", engine="decode-0/0")
    line = json.loads(capsys.readouterr().err)
    assert line.items() >= {
        "event": "placed", "service": "scheduler", "logger": "scheduler.core", "level": "info",
        "request_id": "r1", "attempt": 2, "engine": "decode-0/0",
    }.items()  # fmt: skip
    assert "ts" in line


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_prompts_and_secrets_never_reach_a_line(
    fmt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging("gateway", fmt=fmt, level="debug")
    try:
        secret = "hunter2"
        raise RuntimeError("broken")
    except RuntimeError:
        get_logger("x").exception("failed", prompt="my diary", password=secret)
    err = capsys.readouterr().err
    assert "my diary" not in err
    assert "hunter2" not in err.replace('secret = "hunter2"', "")
    assert "RuntimeError: broken" in err


def test_a_traceback_stays_on_its_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("gateway", fmt="json", level="info")
    get_logger("x").error("failed", exc_info=RuntimeError("broken"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "broken" in json.loads(line)["exception"]


def test_standard_library_warnings_take_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("gateway", fmt="json", level="info")
    logging.getLogger("uvicorn.error").warning("odd %s", "thing")
    logging.getLogger("uvicorn.error").info("chatter")
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "odd thing"
    assert line["service"] == "gateway"


@pytest.mark.parametrize(("fmt", "level"), [("xml", "info"), ("json", "loud")])
def test_unknown_formats_and_levels_are_refused(fmt: str, level: str) -> None:
    with pytest.raises(ValueError, match="unknown; use"):
        configure_logging("x", fmt=fmt, level=level)
