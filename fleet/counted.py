"""A number with its noun: 1 instance, 2,000 instances. Pure; static/js/format.js writes the same."""


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
