"""Generate docs/options.csv from the declared options of every kind of engine.

python -m fleet.tests.option_table > docs/options.csv
"""

import csv
from io import StringIO

from fleet.kinds import KINDS
from fleet.kinds.options.option import options_of
from router.contract.values.fields import Field

WORDS = {"bool": "true, false", "list": "a list", "map": "a mapping", "text": "text"}


def table() -> str:
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kind", "option", "default", "allowed", "what it does"])
    for kind in KINDS.values():
        writer.writerows(
            [kind.name, option.name, default(option), allowed(option), option.help] for option in options_of(kind.spec)
        )
    return text.getvalue()


def default(option: Field) -> str:
    if option.default in (None, ()):
        return ""
    return str(option.default).lower() if option.kind == "bool" else str(option.default)


def allowed(option: Field) -> str:
    if option.minimum is not None and option.maximum is not None:
        return f"{option.minimum:,} to {option.maximum:,} {option.unit}".strip()
    return ", ".join(str(choice) for choice in option.choices) or WORDS.get(option.kind, "")


if __name__ == "__main__":
    print(table(), end="")
