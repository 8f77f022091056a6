"""docs/api.md names every parameter there is."""

from __future__ import annotations

import re
from pathlib import Path

from dualpath.gateway import responses
from dualpath.gateway.schema import UNSUPPORTED, ChatBody, CompletionBody

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")


def test_every_parameter_is_on_the_page_of_the_api() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE))
    known = {*ChatBody.model_fields, *CompletionBody.model_fields, *UNSUPPORTED}
    known |= {*responses.ResponsesBody.model_fields, *responses.SAME, *responses.UNSUPPORTED}
    assert known - named == set()
