"""Images, sound, video and files in a prompt. Pure."""

from collections.abc import Mapping
from typing import Any

MOST_PARTS = 10_000  # turns and parts; examining more would take longer than some milliseconds
# Fields with turns, or with texts that have parts
_TURNS = (
    "system",
    "messages",
    "input",
    "query",
    "queries",
    "documents",
    "items",
    "text_1",
    "text_2",
    "data_1",
    "data_2",
)
# Types of parts; if a part has another type or none, engines also look for fields with these names
_MEDIA = frozenset(
    (
        *("image", "image_url", "image_embeds", "image_pil", "input_image", "computer_screenshot"),
        *("video", "video_url", "video_embeds", "input_video"),
        *("audio", "audio_url", "audio_embeds", "input_audio", "document", "file", "input_file"),
    )
)
_PLACES = frozenset(("url", "image_url", "audio_url", "video_url", "file_url", "file_id"))


def media_in(document: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether the prompt has images, sound, video or files, and whether an engine would fetch any from
    elsewhere; both are True if it has more than MOST_PARTS."""
    found = is_elsewhere = False
    left = [document[name] for name in _TURNS if name in document]
    for each in left:  # the list grows during the loop
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            kind = each.get("type")
            if (isinstance(kind, str) and kind in _MEDIA) or not _MEDIA.isdisjoint(each):
                found, is_elsewhere = True, is_elsewhere or _is_elsewhere(each)
            left += [each[name] for name in ("content", "output") if isinstance(each.get(name), list | dict)]
        if len(left) > MOST_PARTS:
            return True, True
    return found, is_elsewhere


def _is_elsewhere(part: Mapping[str, Any]) -> bool:
    within = [part, *(value for value in part.values() if isinstance(value, dict))]
    places = (each[name] for each in within for name in _PLACES.intersection(each))
    return any(isinstance(place, str) and not place.startswith("data:") for place in places)
