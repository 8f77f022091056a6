"""`dualpath report`: results of experiments, drawn anew or compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dualpath.cli.bench.experiment import summary
from dualpath.cli.bench.live import line
from dualpath.cli.words import WRONG_USE, complain
from dualpath.loadgen.report import compare
from dualpath.loadgen.report.page import write_page
from dualpath.loadgen.report.png import PngUnavailable, picture, write_png
from dualpath.loadgen.report.results import Experiment, ReportError, load

_MAIN_SECTIONS = 2
"""What was asked, and where the time to the first token went: what a text shows of an experiment."""


def report(files: Sequence[Path], out: Path | None) -> int:
    """Exit code: 0 shown, 1 `out` cannot be written, 2 a file holds no results, or there are too many."""
    if len(files) > 2:
        complain("two results can be compared at a time; name one or two files")
        return WRONG_USE
    try:
        experiments = [load(file) for file in files]
    except ReportError as error:
        complain(str(error))
        return WRONG_USE
    lines = _one(experiments[0]) if len(experiments) == 1 else compare.text(*experiments)
    for text in lines:
        print(text)
    if out is not None:
        try:
            _write(experiments, out)
        except OSError as error:
            complain(f"{out} cannot be written ({error.strerror}); name another place with --out")
            return 1
    return 0


def _one(experiment: Experiment) -> list[str]:
    runs = [f"{line(run)}{'' if run.valid else '  (invalid)'}" for run in experiment.runs]
    return [f"{experiment.title}, {experiment.began}", *runs, *summary(experiment)]


def _write(experiments: Sequence[Experiment], out: Path) -> None:
    if out.suffix == ".svg" and len(experiments) == 1:
        out.write_text(picture(experiments[0], _MAIN_SECTIONS) + "\n", "utf-8")
        print(f"written: {out}")
        return
    page = out if out.suffix == ".html" else Path(f"{out}.html")
    if len(experiments) == 2:
        page.write_text(compare.comparison_page(*experiments), "utf-8")
    else:
        write_page(experiments[0], page)
        try:
            write_png(experiments[0], page.with_suffix(".png"))
        except PngUnavailable as reason:
            print(f"no picture: {reason}")
    print(f"written: {page}")
