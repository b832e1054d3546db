"""The packages of the wheel. Pages, static files, examples and the list of settings are in its `controlplane`."""

from setuptools import find_packages, setup

FILES = {"templates": "**/*.html", "static": "**/*", "examples": "*", "docs": "settings.md"}

setup(
    packages=[
        *find_packages(include=["controlplane*", "fleet*", "router*"], exclude=["*.tests", "*.tests.*"]),
        *(f"controlplane.{folder}" for folder in FILES),
    ],
    package_dir={f"controlplane.{folder}": folder for folder in FILES},
    package_data={"fleet.engine": ["*.jsonl"], "router": [".compiled/**/*"]}
    | {f"controlplane.{name}": [files] for name, files in FILES.items()},
)
