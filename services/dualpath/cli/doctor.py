"""`dualpath doctor`: whether a cluster would start as asked, and what to do where it would not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from dualpath.cli.examine import RUNNING, Finding, examine_cluster, examine_installation
from dualpath.cli.words import WRONG_USE, complain

_MARKS = {"ok": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[bold red]✗[/]"}


def doctor(config: Path | None, given: Mapping[str, Any], *, as_json: bool) -> int:
    """Exit code: 0 a cluster can start, 1 something is missing, 2 the settings themselves are wrong."""
    findings = examine_installation()
    if well(findings):
        from dualpath.settings import load_settings

        try:
            settings = load_settings(config, **given)
        except ValueError as error:
            complain(str(error))
            return WRONG_USE
        findings += examine_cluster(settings)
    if as_json:
        print(as_document(findings))
    else:
        options = config is not None or any(value is not None for value in given.values())
        print_findings(findings, like_this=options)
    return 0 if well(findings) else 1


def well(findings: Iterable[Finding]) -> bool:
    return all(finding.verdict != "bad" for finding in findings)


def as_document(findings: Iterable[Finding]) -> str:
    """`{"well": …, "findings": [{"what", "verdict", "text", "advice"}]}`."""
    listed = [dataclasses.asdict(finding) for finding in findings]
    document = {"well": all(item["verdict"] != "bad" for item in listed), "findings": listed}
    return json.dumps(document, ensure_ascii=False, indent=1)


def print_findings(
    findings: Iterable[Finding], console: Console | None = None, *, like_this: bool = False
) -> None:
    """`like_this`: the cluster was described by options, which `up` needs as well."""
    console = console or Console(highlight=False)
    table = Table.grid(padding=(0, 1))
    table.add_column()
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    bad = 0
    for finding in findings:
        table.add_row(_MARKS[finding.verdict], finding.what, escape(finding.text))
        if finding.advice:
            table.add_row("", "", f"[cyan]→ {escape(finding.advice)}[/]")
        bad += finding.verdict == "bad"
    console.print(Padding(table, (0, 0, 1, 0)))
    if bad:
        things = "One thing is" if bad == 1 else f"{bad} things are"
        console.print(f"[bold red]{things} in the way of a cluster with these settings.[/]")
    elif any(finding.what == RUNNING for finding in findings):
        console.print("[bold]Once the one on this home has stopped, this one can start.[/]")
    else:
        command = "dualpath up, with the same options" if like_this else "dualpath up"
        console.print(f"[bold green]A cluster with these settings can start: {command}[/]")
