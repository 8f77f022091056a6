"""The reference of all settings, made from their definitions.

`python -m dualpath.settings.reference > docs/settings.md`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dualpath.settings.key_limits import KeyLimits
from dualpath.settings.settings import Settings
from dualpath.settings.synthetic import SyntheticProfile
from dualpath.settings.units import parse_bytes, parse_rate
from dualpath.settings.vl import VlArbitration

_HEAD = """# Settings
Made by `python -m dualpath.settings.reference > docs/settings.md`; do not edit.

A setting comes from the command line (`dualpath up --prefill 2`, where there is such an option), else from the
environment (`DUALPATH_PREFILL=2`, `DUALPATH_SYNTHETIC__LAYERS=4`), else from the file that `--config` or
`DUALPATH_CONFIG` names (TOML, or JSON where its name ends in `.json`), else it has its default. Settings that
contradict each other, and names that do not exist, are errors.

Sizes are written as `512MiB` or `2GB`, rates as `50MB/s` or `400Gbps`; times are in seconds.
"""
_UNITS: dict[Any, tuple[tuple[str, int], ...]] = {
    parse_bytes: (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)),
    parse_rate: (("GB/s", 10**9), ("MB/s", 10**6)),
}


def reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        [
            _HEAD,
            *_table(Settings),
            "",
            "## `[synthetic]`",
            *_table(SyntheticProfile),
            "",
            "## `[vl_tables]`",
            *_table(VlArbitration),
            "",
            "## `[key_limits.NAME]`",
            *_table(KeyLimits),
            "",
        ]
    )


def _table(model: type[BaseModel]) -> Iterator[str]:
    yield "| setting | default | |"
    yield "| --- | --- | --- |"
    for name, field in model.model_fields.items():
        text = (field.description or "").replace("|", "\\|")
        choices = _choices(field.annotation)
        yield f"| `{name}` | {_default(field)} | {text}{choices} |"


def _choices(annotation: Any) -> str:
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return f" ({', '.join(f'`{choice}`' for choice in get_args(kind))})"
    return ""


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        return "`~/.local/share/dualpath`"
    if default is None or default in ((), {}) or isinstance(default, BaseModel):
        return ""
    if isinstance(default, tuple):
        return f"`{list(default)}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    units = next((_UNITS[v.func] for v in field.metadata if getattr(v, "func", 0) in _UNITS), ())
    for unit, size in units:
        if default % size == 0:
            return f"`{default // size}{unit}`"
    return f"`{default}`"


if __name__ == "__main__":
    print(reference(), end="")
