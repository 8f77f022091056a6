"""Mistakes in settings, said in sentences."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def unknown_variables(environ: Mapping[str, str], prefix: str, names: Iterable[str]) -> list[str]:
    """A sentence for each variable with the prefix that is no setting: most likely a slip of the pen."""
    known = {prefix + name.upper() for name in names}
    return [
        f"{variable} in the environment is no setting{_meant(variable, known)}"
        for variable in sorted(environ)
        if variable.startswith(prefix) and variable.split("__")[0] not in known
    ]


def file_mistake(path: Path) -> str | None:
    """Why the settings file cannot be read, if so."""
    try:
        text = path.read_text("utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        return f"no settings file at {path}"
    except (OSError, UnicodeDecodeError) as error:
        return f"settings file {path} cannot be read: {error}"
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        return f"settings file {path} is not well formed: {error}"
    return None if isinstance(data, dict) else f"settings file {path} holds no table of settings"


def sentence(error: ErrorDetails, *models: type[BaseModel]) -> str:
    """One mistake that pydantic found; `models` have the fields whose names it may be about."""
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = {field for model in models for field in model.model_fields}
        return f"{name} is no setting{_meant(str(error['loc'][-1]), known)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
