"""A node's knowledge of its Pods between two lists, whatever happens to the watch."""

from collections.abc import Iterator
from typing import Any

from fleet.kubernetes.api import Expired, NotReached
from fleet.kubernetes.mirror import Mirror
from fleet.kubernetes.objects import Metadata, ObjectStatus, Pod


def pod(name: str, version: int, phase: str = "Running") -> Pod:
    return Pod(Metadata(name, resource_version=str(version)), status=ObjectStatus(phase))


def event(kind: str, *words: Any) -> tuple[str, Pod]:
    return kind, pod(*words)


class Scripted:
    """A client that returns scripted lists and watches in turn: each a result, or the error that ends it."""

    def __init__(self, lists: list[Any], watches: list[list[Any]]) -> None:
        self.lists, self.watches, self.asked = lists, watches, []  # type: ignore[var-annotated]

    def list_pods(self, selector: str) -> tuple[list[Pod], str]:
        given = self.lists.pop(0)
        if isinstance(given, Exception):
            raise given
        return given, "10"

    def watch_pods(self, selector: str, version: str, timeout_s: float) -> Iterator[tuple[str, Pod]]:
        self.asked.append(version)
        for given in self.watches.pop(0):
            if isinstance(given, Exception):
                raise given
            yield given


def names(mirror: Mirror) -> set[str]:
    return set(mirror.pods())


def test_a_mirror_lists_once_and_then_watches_from_there() -> None:
    source = Scripted(
        [[pod("a", 9)]], [[event("ADDED", "b", 11), event("DELETED", "a", 12)], [event("MODIFIED", "b", 13)]]
    )
    mirror = Mirror(source, "")
    assert mirror.trouble == "its Pods have not been listed yet"
    mirror.step()
    mirror.step()
    assert names(mirror) == {"b"}
    assert (source.asked, mirror.trouble) == (["10", "12"], "")


def test_a_bookmark_updates_only_the_version() -> None:
    source = Scripted([[pod("a", 9)]], [[event("BOOKMARK", "", 50)], []])
    mirror = Mirror(source, "")
    mirror.step()
    mirror.step()
    assert (source.asked, names(mirror)) == (["10", "50"], {"a"})


def test_an_expired_watch_lists_the_pods_again() -> None:
    source = Scripted([[pod("a", 9)], [pod("b", 90)]], [[Expired("too old")], []])
    mirror = Mirror(source, "")
    mirror.step()
    assert names(mirror) == {"a"}
    mirror.step()
    assert (source.asked, names(mirror), mirror.trouble) == (["10", "10"], {"b"}, "")


def test_while_the_server_is_unreachable_the_mirror_keeps_its_state_and_reports_it() -> None:
    source = Scripted([[pod("a", 9)]], [[event("ADDED", "b", 11), NotReached("refused")], [event("ADDED", "c", 12)]])
    mirror = Mirror(source, "")
    mirror.step()
    assert (names(mirror), mirror.trouble) == ({"a", "b"}, "refused")
    mirror.step()
    assert (source.asked, mirror.trouble, names(mirror)) == (["10", "11"], "", {"a", "b", "c"})


def test_a_server_that_was_never_reached_is_retried() -> None:
    source = Scripted([NotReached("refused"), [pod("a", 9)]], [[]])
    mirror = Mirror(source, "")
    mirror.step()
    assert mirror.trouble == "refused"
    mirror.step()
    assert (names(mirror), mirror.trouble) == ({"a"}, "")


def test_a_new_pod_is_known_before_the_watch_reports_it() -> None:
    mirror = Mirror(Scripted([[pod("a", 9)]], [[]]), "")
    mirror.step()
    mirror.note(pod("b", 11, "Pending"))
    mirror.note(pod("a", 1, "Pending"))
    assert mirror.get("b") is not None
    assert mirror.pods()["a"].status.phase == "Running"
    mirror.forget("b")
    mirror.forget("nobody")
    assert names(mirror) == {"a"}
