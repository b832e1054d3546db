"""The wheels that `make test-contracts` has downloaded: their sources are read, nothing is installed."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".contracts"
PINS = ROOT / "requirements-contracts.txt"
DOCUMENT = ROOT / "docs" / "index-knows.md"
TITLES = {
    **{"vllm": "vLLM", "sglang": "SGLang", "lmcache": "LMCache", "mooncake-transfer-engine-non-cuda": "Mooncake"},
    "nixl-cu12": "NIXL",
}


def versions(file: Path = PINS) -> Mapping[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", file.read_text(), re.MULTILINE))


@cache
def wheel(package: str) -> zipfile.ZipFile:
    """Return the wheel; skip the test if it was not downloaded."""
    wanted = FOLDER / "wanted.txt"
    if not wanted.exists():
        pytest.skip("make test-contracts fetches the wheels")
    (found,) = FOLDER.glob(f"{package.replace('-', '_')}-{versions(wanted)[package]}-*.whl")
    return zipfile.ZipFile(found)


@cache
def sources(package: str, folder: str) -> Mapping[str, str]:
    """Return Python modules by path."""
    archive = wheel(package)
    names = [name for name in archive.namelist() if name.startswith(folder) and name.endswith(".py")]
    assert names, f"{package} has no {folder}"
    return {name: archive.read(name).decode() for name in names}


def table() -> Iterator[str]:
    yield "| | version |"
    yield "|---|---|"
    yield from (f"| {TITLES[package]} | {version} |" for package, version in sorted(versions().items()))


def main() -> None:
    """Write the table of the versions that satisfy the contracts."""
    text = DOCUMENT.read_text()
    before, _, after = text.partition("<!-- versions -->\n")
    _, _, rest = after.partition("<!-- /versions -->\n")
    DOCUMENT.write_text(f"{before}<!-- versions -->\n" + "\n".join(table()) + f"\n<!-- /versions -->\n{rest}")


if __name__ == "__main__":
    main()
