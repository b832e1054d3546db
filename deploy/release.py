"""Cut a version: `make release VERSION=0.4.0`, or `python deploy/release.py 0.4.0`.

Gives the version to every file that states it, closes the changelog's *Unreleased* under it with today's date,
commits both and tags the commit. Nothing is pushed. Refused, with nothing changed: a version that is not above the
current one, changes that are not committed, an empty *Unreleased*.
"""

import re
import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROJECT = "pyproject.toml"
CHART = "deploy/helm/weir/Chart.yaml"
STATED = [  # files that state the version, and the line that does, as a pattern around it
    (PROJECT, r'^(version = ")([^"]+)(")$'),
    (CHART, r"^(version: )(\S+)()$"),
    (CHART, r'^(appVersion: ")([^"]+)(")$'),
]
CHANGELOG = "CHANGELOG.md"
UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)


def numbers(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise SystemExit(f"version: {version!r} is not of the form 1.2.3")
    return tuple(int(part) for part in version.split("."))


def cut(root: Path, version: str, today: date) -> None:
    """Write the version and the changelog's new section into the checkout at `root`."""
    current: str = tomllib.loads((root / PROJECT).read_text())["project"]["version"]
    if numbers(version) <= numbers(current):
        raise SystemExit(f"version: {version} is not above {current}, the current one")
    changelog = (root / CHANGELOG).read_text()
    unreleased = UNRELEASED.search(changelog)
    if unreleased is None or not unreleased[1].strip():
        raise SystemExit(f"{CHANGELOG}: nothing stands under Unreleased")

    closed = f"## Unreleased\n\n## {version} ({today.isoformat()})\n"
    (root / CHANGELOG).write_text(changelog.replace("## Unreleased\n", closed, 1))
    for name, pattern in STATED:
        text = (root / name).read_text()
        (root / name).write_text(re.sub(pattern, rf"\g<1>{version}\g<3>", text, count=1, flags=re.MULTILINE))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python deploy/release.py VERSION, such as 0.4.0")
    version = sys.argv[1]
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit(f"commit or undo these changes first:\n{changed}")
    cut(ROOT, version, datetime.now(tz=UTC).date())
    git("commit", "--all", "--message", f"Cut version {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"Weir {version}")
    print(f"v{version} is committed and tagged. To publish it: git push --follow-tags")


if __name__ == "__main__":
    main()
