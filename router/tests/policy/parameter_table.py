"""Generate docs/parameters.csv from the parameters of a policy in `PARAMETERS`.

python -m router.tests.policy.parameter_table > docs/parameters.csv
"""

import csv
import re
from io import StringIO

from router.contract.values.fields import number
from router.policy.schema.parameters import PARAMETERS


def table() -> str:
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["parameter", "field", "default", "allowed", "raising it"])
    for parameter in PARAMETERS.values():
        default = number(parameter.default) if parameter.kind in ("int", "float") else str(parameter.default)
        allowed = re.sub("^(a number from|one of) ", "", parameter.allowed.replace("a whole number from", "int,"))
        writer.writerow([parameter.path, parameter.title, default, allowed, parameter.help])
    return text.getvalue()


if __name__ == "__main__":
    print(table(), end="")
