import logging
import sys

import pytest

from router.contract.values.secret_text import HIDDEN, MaskingFormatter, masked, masked_words

TOKEN = "weir_1a2b3c4d_" + "Ab-_" * 10 + "xyz"
KEY = "sk-weir-1a2b3c4d-" + "Ab-_" * 10 + "xyz"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token {TOKEN}.", "token weir_1a2b3c4d_(hidden)."),
        (f"x={KEY}", "x=sk-weir-1a2b3c4d-(hidden)"),
        ("webhook whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw= rotated", "webhook whsec_(hidden) rotated"),
        ("no answer from redis://:s3cret@redis:6379/0", "no answer from redis://:(hidden)@redis:6379/0"),
        ("postgresql://weir:p:w@db/weir", "postgresql://weir:(hidden)@db/weir"),
        ("a://u:p@h,b://u:p@h", "a://u:(hidden)@h,b://u:(hidden)@h"),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer (hidden)"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic (hidden)"),
        ("vllm serve --api-key s3cret --port 1", "vllm serve --api-key (hidden) --port 1"),
        ("--hf-token=s3cret", "--hf-token=(hidden)"),
        ("['--api-key', 's3cret', '--port']", "['--api-key', '(hidden)', '--port']"),
        ("HF_TOKEN=s3cret PORT=1", "HF_TOKEN=(hidden) PORT=1"),
        ("{'HF_TOKEN': 's3cret', 'A': '1'}", "{'HF_TOKEN': '(hidden)', 'A': '1'}"),
    ],
)
def test_a_secret_of_a_known_shape_is_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192 --tokenizer meta/llama",
        "http://10.0.0.7:8000/v1 answered 200",
        "weir_requests_total 5",
        "1,024 tokens: ok",
        "the bearer of news",
        "--api-key --port 8000",
    ],
)
def test_text_that_only_resembles_a_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_a_command_line_is_masked_word_by_word() -> None:
    words = ["serve", "--api-key", "two words", "--hf-token=x", "--port", "1", "--key", "--flag"]
    assert masked_words(words) == [
        "serve",
        "--api-key",
        HIDDEN,
        "--hf-token=(hidden)",
        "--port",
        "1",
        "--key",
        "--flag",
    ]


def test_a_log_line_is_masked_with_its_traceback() -> None:
    try:
        raise ValueError(f"bad {TOKEN}")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "key %s", (KEY,), sys.exc_info())
    line = MaskingFormatter(logging.Formatter()).format(record)
    assert "ValueError: bad weir_1a2b3c4d_(hidden)" in line
    assert "Ab-_" not in line


def test_a_long_line_without_secrets_takes_no_time() -> None:
    """No expression backtracks over a whole line for each of its characters."""
    for part in ("a://a:", "--key", "A_", "bearer ", "KEY= "):
        masked(part * (60_000 // len(part)))
