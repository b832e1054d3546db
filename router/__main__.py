"""`python -m router`: run one router process, from the compiled copy if there is one."""

import sys

from router.request_path import ROUTER


def main() -> int:
    ROUTER.use()
    from router import process  # process replaces these modules by their compiled copies

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
