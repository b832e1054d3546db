"""Numbers in sentences: 1 instance, 2,000 instances, 51 %. Pure; static/js/format.js writes the same."""


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float | None, digits: str = ".0f") -> str:
    if share is None:
        return "–"
    return f"{100 * share:{digits}} %".replace("-", "−")
