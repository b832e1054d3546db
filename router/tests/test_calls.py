"""Measure a request's cost by counts that other work on the machine does not change."""

import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from router.tests.socketless import CHUNKS, counted

# Calls of Python functions per request on a reused connection
MOST = {"unary": 195, "burst": 255}
MOST_OF_CHUNK = 3.0  # share of a stream's calls if each event arrives alone
MOST_INSTRUCTIONS = {"unary": 670_000, "long": 5_900_000}  # in user code
# Allocate six buffers of 4 MB repeatedly, as for long prompts, and print the page faults
BUFFERS = """
import resource
from router.process import keep_freed_memory
keep_freed_memory()
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [b"x" * 4_000_000 for _ in range(6)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shape", MOST)
async def test_a_request_takes_few_calls_of_python_functions(shape):
    count = 200
    calls = min([await counted(shape, count) for _ in range(3)], key=Counter.total)  # timers can only add calls
    most = ", ".join(f"{name} {n / count:.1f}" for name, n in calls.most_common(12))
    assert calls.total() / count <= MOST[shape], most


async def test_a_chunk_takes_few_calls_of_python_functions():
    few, many = [(await counted("paced", 50, chunks)).total() / 50 for chunks in (16, 16 + CHUNKS)]
    assert round((many - few) / CHUNKS, 1) <= MOST_OF_CHUNK  # apart from calls by timers


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is asked to keep memory")
def test_memory_of_long_prompts_is_reused():
    faults = subprocess.run([sys.executable, "-c", BUFFERS], cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert int(faults.stdout) < 600  # page faults; the text has 6,000 pages


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.parametrize("shape", MOST_INSTRUCTIONS)
def test_a_request_takes_few_instructions(tmp_path, shape):
    count = 64
    options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={tmp_path / 'counted'}"]
    program = [sys.executable, "-m", "router.tests.socketless", shape, str(count), "--instructions"]
    subprocess.run(["valgrind", *options, *program], cwd=ROOT, check=True, capture_output=True, timeout=280)
    found = [int(line[1]) for line in re.finditer(r"(?m)^totals: (\d+)", (tmp_path / "counted").read_text())]
    assert found
    assert max(found) / count <= MOST_INSTRUCTIONS[shape]
