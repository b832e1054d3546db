"""Audio and images of a simulated engine are well formed."""

import base64
import io
import wave

import pytest

from fleet.tests.simengine.conftest import Sim

CHAT = "/v1/chat/completions"


def test_the_transcript_is_as_long_as_the_audio(sim: Sim) -> None:
    form = {"file": ("a.wav", b"\0" * 64_000, "audio/wav"), "model": (None, "sim")}
    heard = sim.http.post("/v1/audio/transcriptions", files=form).json()
    assert heard["usage"] == {"type": "duration", "seconds": 2}
    plain = sim.http.post("/v1/audio/translations", files={**form, "response_format": (None, "text")})
    assert plain.text == heard["text"]


def test_speech_is_a_wave_file_whose_length_follows_from_its_text(sim: Sim) -> None:
    spoken = sim.post("/v1/audio/speech", {"model": "sim", "input": "x" * 30})
    with wave.open(io.BytesIO(spoken.content)) as read:
        assert read.getnframes() / read.getframerate() == 2


def test_images_are_drawn(sim: Sim) -> None:
    drawn = sim.post("/v1/images/generations", {"model": "sim", "prompt": "a cat", "n": 2}).json()
    assert [base64.b64decode(one["b64_json"])[:4] for one in drawn["data"]] == [b"\x89PNG"] * 2


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/audio/speech", {"model": "sim"}, "input: Field required"),
        ("/v1/audio/transcriptions", {"model": "sim"}, "file: Field required"),
        ("/v1/images/generations", {"model": "sim", "n": 11}, "n: Input should be from 1 to 10"),
        ("/v1/images/generations", {"model": "other"}, "does not exist"),
    ],
)
def test_missing_input_is_named(sim: Sim, path: str, body: dict[str, object], why: str) -> None:
    refused = sim.post(path, body)
    assert refused.status_code in (400, 404)
    assert why in refused.json()["error"]["message"]


def test_an_image_has_tokens_that_are_cached_when_it_is_sent_again(sim: Sim) -> None:
    def ask(image: str) -> dict[str, object]:
        parts = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "what is it?"}]
        body = {"model": "sim", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}
        return dict(sim.post(CHAT, body).json()["usage"])

    first, again, other = ask("data:a"), ask("data:a"), ask("data:b")
    assert first["prompt_tokens"] == other["prompt_tokens"] > 256  # type: ignore[operator]
    cached = [one["prompt_tokens_details"]["cached_tokens"] for one in (first, again, other)]  # type: ignore[index]
    assert cached[1] >= 256
    assert cached[0] == cached[2] == 0
