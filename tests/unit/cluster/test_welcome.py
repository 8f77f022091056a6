from __future__ import annotations

import json
import shlex

from dualpath.cluster.welcome import curl_line


def test_the_line_to_copy_is_one_command_whatever_the_model_is_called() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000/v1", 'it\'s "mine"'))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == 'it\'s "mine"'


def test_where_the_api_has_keys_the_line_sends_the_shells() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000/v1", "m", key=True))
    assert "Authorization: Bearer $OPENAI_API_KEY" in words
