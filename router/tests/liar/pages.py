"""Contents of an engine's metrics page, true or false."""

from collections.abc import Callable

# (requests that it holds, tokens that it has generated) -> the values on its page
PAGES: dict[str, Callable[[int, int], tuple[object, object]]] = {
    "true": lambda held, tokens: (held, tokens),
    "stands still": lambda held, tokens: (1, 5),
    "idle": lambda held, tokens: (0, tokens),
    "zeros": lambda held, tokens: (0, 0),
    "negative": lambda held, tokens: (-held - 1, -tokens - 1),
    "no numbers": lambda held, tokens: ("NaN", "NaN"),
    "words": lambda held, tokens: ("some", "many"),
    "infinite": lambda held, tokens: ("+Inf", "+Inf"),
    "huge": lambda held, tokens: ("1e308", "1e308"),
}
NAMES = (*PAGES, "another engine's", "nothing", "late")  # late: it does not answer in time


def text(name: str, held: int, tokens: int) -> bytes | None:
    """Return the page's text; None if there is no page."""
    if name == "late":
        return None
    if name == "nothing":
        return b""
    prefix = "sglang" if name == "another engine's" else "vllm"
    requests, total = PAGES.get(name, PAGES["true"])(held, tokens)
    figures = {"num_requests_running": requests, "num_requests_waiting": 0, "generation_tokens_total": total}
    labels = '{engine="0",model_name="llama"}'
    return "".join(f"{prefix}:{figure}{labels} {value}\n" for figure, value in figures.items()).encode()
