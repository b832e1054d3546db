"""The bill of materials (CycloneDX 1.6, JSON) of the packages that run Weir: `python deploy/sbom.py > sbom.cdx.json`.

Names, versions and hashes come from requirements.txt, licences from the installed packages.
"""

import json
import re
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from router.contract.installation import VERSION  # noqa: E402 - after the path

# Classifiers and free texts that are no SPDX expression
SPDX = {
    "Apache 2": "Apache-2.0",
    "Apache License Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    hashes: tuple[str, ...]  # sha256, one for each file that may be installed
    licence: str  # SPDX expression; empty: not installed on this platform


def packages(text: str) -> Iterator[Package]:
    """Those of a requirements file with hashes."""
    for entry in text.replace("\\\n", " ").splitlines():
        found = re.match(r"([\w.-]+)==([^\s;]+)", entry)
        if found:
            yield Package(found[1], found[2], tuple(re.findall(r"--hash=sha256:(\w+)", entry)), licence(found[1]))


def licence(name: str) -> str:
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return ""
    if told["License-Expression"]:
        return str(told["License-Expression"])
    classifiers = [
        line.rpartition(" :: ")[2] for line in told.get_all("Classifier") or [] if line.startswith("License")
    ]
    named = [SPDX.get(name, name) for name in classifiers if name != "OSI Approved"]
    return " OR ".join(dict.fromkeys(named)) or SPDX.get(told["License"] or "", told["License"] or "")


def component(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name.lower()}@{package.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        **({"licenses": [{"expression": package.licence}]} if package.licence else {}),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.name}/{package.version}/",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
            }
        ],
    }


def bill() -> dict[str, Any]:
    text = (ROOT / "requirements.txt").read_text()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # From the content: the same packages give the same bill
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'weir {VERSION} {text}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "weir",
                "name": "weir",
                "version": VERSION,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [component(package) for package in packages(text)],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    print()
