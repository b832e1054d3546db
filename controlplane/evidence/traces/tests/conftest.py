import json
from typing import Any


def mooncake_line(**changes: Any) -> str:
    row = {"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}
    return json.dumps({k: v for k, v in (row | changes).items() if v is not None})
