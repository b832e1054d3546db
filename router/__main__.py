"""`python -m router`: one router process, compiled where there is a copy."""

import sys

from router.request_path import ROUTER


def main() -> int:
    ROUTER.use()
    from router import process  # it imports what the copy replaces

    return process.main()


if __name__ == "__main__":
    sys.exit(main())
