"""The free space under a KV tier."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from fleet.observe.samples import free_space, is_full


def test_a_folder_that_does_not_exist_yet_has_the_space_of_its_disk(tmp_path: Path) -> None:
    free, total = free_space(str(tmp_path / "not" / "yet")) or (0, 0)
    assert 0 < free <= total


def test_a_folder_that_cannot_be_read_reports_no_free_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    assert free_space("/kv") is None


def test_an_engine_without_the_folder_reports_no_free_space() -> None:
    assert free_space("") is None
    assert not is_full(None)


@pytest.mark.parametrize(("free", "full"), [(0, True), (19, True), (20, False), (1000, False)])
def test_a_disk_with_less_than_two_percent_left_is_full(free: int, full: bool) -> None:
    assert is_full((free, 1000)) is full
