"""What a checkout must be, so that it installs, imports and builds."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE_ROOTS = ("services", "shared", "loadgen")


def packages() -> list[Path]:
    return sorted(
        path
        for root in SOURCE_ROOTS
        for path in (ROOT / root / "dualpath").iterdir()
        if path.is_dir() and path.name != "__pycache__"
    )


def test_the_namespace_has_no_init_file() -> None:
    for root in SOURCE_ROOTS:
        assert (ROOT / root / "dualpath").is_dir()
        assert not (ROOT / root / "dualpath" / "__init__.py").exists()


def test_every_package_is_typed_and_has_an_init_file() -> None:
    for package in packages():
        assert (package / "__init__.py").is_file(), package
        assert (package / "py.typed").is_file(), package


def test_no_two_roots_have_the_same_package() -> None:
    names = [package.name for package in packages()]
    assert len(names) == len(set(names))


def test_a_wheel_has_all_three_roots_and_the_command(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        (entry_points,) = (name for name in files if name.endswith("entry_points.txt"))
        assert b"dualpath = dualpath.cli.main:main" in archive.read(entry_points)
    for package in packages():
        assert f"dualpath/{package.name}/__init__.py" in files
        assert f"dualpath/{package.name}/py.typed" in files
    assert "dualpath/__init__.py" not in files


def test_constraints_pin_public_versions_only() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        assert name, line
        assert version, f"{line}: not pinned"
        assert "+" not in version, f"{line}: a local version exists on one machine only"
        assert "@" not in line, line


def test_every_direct_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    assert not {name.lower() for name in wanted} - pinned
