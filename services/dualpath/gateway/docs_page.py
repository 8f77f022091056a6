"""The page at `/docs`: the OpenAPI document as HTML that needs nothing else, no script and no other host. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #0a7; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; }
summary { cursor: pointer; padding: .5rem .8rem; overflow-wrap: anywhere; }
summary:hover { background: var(--soft); }
details > div { padding: 0 .8rem .8rem; overflow-x: auto; }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 600; color: var(--mark); }
code, pre { font: .9em ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem; border-radius: .4rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0; border-top: 1px solid var(--line); }
"""


def docs_page(document: Json) -> str:
    """Every operation with its body, answers, and an example for the shell."""
    info = document["info"]
    schemas = document.get("components", {}).get("schemas", {})
    operations = [
        _operation(path, verb, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
        '<p>This API in the <a href="openapi.json">OpenAPI format</a>.</p>'
        f"<h2>Operations</h2>{''.join(operations)}"
        f"<h2>Schemas</h2>{''.join(_schema(name, schemas[name]) for name in sorted(schemas))}"
        "</body></html>"
    )


def _operation(path: str, verb: str, operation: Json) -> str:
    bodies = operation.get("requestBody", {}).get("content", {})
    parts = [f"<p>{escape(operation['description'])}</p>"] if "description" in operation else []
    flags = ""
    for kind, content in bodies.items():
        parts.append(f"<p>Body: <code>{escape(kind)}</code>, {_type(content['schema'])}</p>")
        flags = f" -H 'Content-Type: {kind}' -d @body.json"
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation.get("responses", {}).items()
    )
    parts.append(f"<table><tr><th>Status<th>Answer</tr>{rows}</table>")
    method = f" -X {verb.upper()}" if verb not in ("get", "post") else ""
    shell = f'curl{method} "$URL{path}" -H "Authorization: Bearer $KEY"{flags}'
    parts.append(f"<pre>{escape(shell)}</pre>")
    name = f'<span class="verb">{escape(verb.upper())}</span> <code>{escape(path)}</code>'
    return f"<details><summary>{name}</summary><div>{''.join(parts)}</div></details>"


def _schema(name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' *' if field in required else ''}</td>"
        f"<td>{_type(kind)}</td><td>{escape(kind.get('description', ''))}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    about = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    table = f"<table><tr><th>Field (* required)<th>Type<th></tr>{rows}</table>" if rows else ""
    anchor = escape(name, quote=True)
    return (
        f'<details id="{anchor}"><summary><code>{escape(name)}</code></summary>'
        f"<div>{about}{table or _type(schema)}</div></details>"
    )


def _type(schema: Json) -> str:
    """A schema in a few words; others are linked."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2], quote=True)
        return f'<a href="#{name}"><code>{name}</code></a>'
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(_type(part) for part in schema[key])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in values)
    kind = schema.get("type", "any")
    words = escape(" or ".join(kind) if isinstance(kind, list) else kind)
    if "items" in schema:
        words = f"list of {_type(schema['items'])}"
    return words + "".join(_bounds(schema))


def _bounds(schema: Json) -> Iterator[str]:
    signs = {
        "minimum": "≥",
        "exclusiveMinimum": ">",
        "maximum": "≤",
        "exclusiveMaximum": "<",
        "minLength": "length ≥",
        "maxLength": "length ≤",
        "minItems": "items ≥",
        "maxItems": "items ≤",
    }
    for name, sign in signs.items():
        if name in schema:
            yield escape(f", {sign} {schema[name]}")
