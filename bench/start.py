"""Duration of a start (empty data folder, second start, after kill -9) and of a stop.

    .venv/bin/python bench/start.py

Measured from starting `manage.py up` until the sign-in page answers, and until all eight demo engines are ready.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from controlplane.tests.real_up import RealUp, new_folder, running


def watch(weir: RealUp, began: float, label: str) -> None:
    weir.until(lambda: weir.get("/login") == 200, "the page")
    page = time.monotonic() - began
    weir.wait_for("instances of pool demo are ready")
    print(f"{label:<24} page {page:5.1f} s   engines {time.monotonic() - began:5.1f} s")


def again(weir: RealUp, label: str) -> None:
    began = time.monotonic()
    weir.start()
    watch(weir, began, label)


def main() -> None:
    began = time.monotonic()
    with running(folder=new_folder()) as weir:
        watch(weir, began, "empty data folder")
        print(f"{'stop':<24} {weir.stop():10.1f} s   {len(weir.everything())} processes left")
        again(weir, "second start")
        weir.process.kill()
        weir.process.wait()
        again(weir, "after kill -9 of up")
        print(f"{'stop':<24} {weir.stop():10.1f} s   {len(weir.everything())} processes left")


if __name__ == "__main__":
    main()
