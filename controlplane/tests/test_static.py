import re

import pytest
from django.conf import settings
from django.test import AsyncClient

from controlplane.doors.web.static import StaticFiles


@pytest.fixture
def page(tmp_path, settings):
    settings.STATICFILES_DIRS = [tmp_path]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    from django.contrib.staticfiles import finders

    finders.get_finder.cache_clear()
    yield tmp_path / "page.css"
    finders.get_finder.cache_clear()


async def body(response):
    return b"".join([part async for part in response.streaming_content])


async def test_a_file_is_served_with_its_type_and_revalidated():
    answer = await AsyncClient().get("/static/css/weir.css")
    assert answer.status_code == 200
    assert answer["content-type"] == 'text/css; charset="utf-8"'
    assert "max-age=0" in answer["cache-control"]
    assert "access-control-allow-origin" not in answer
    assert await body(answer) == (settings.BASE_DIR / "static/css/weir.css").read_bytes()


async def test_a_file_that_changed_while_the_server_runs_is_served_completely(page):
    page.write_text("short")
    client = AsyncClient()
    assert await body(await client.get("/static/page.css")) == b"short"
    page.write_text("now it is longer than it was")
    again = await client.get("/static/page.css")
    assert await body(again) == b"now it is longer than it was"
    assert again["content-length"] == "28"


async def test_a_browser_that_has_the_file_gets_not_modified():
    client = AsyncClient()
    first = await client.get("/static/css/weir.css")
    again = await client.get("/static/css/weir.css", headers={"if-modified-since": first["last-modified"]})
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path", ["/static/../manage.py", "/static/%2e%2e/manage.py", "/static//etc/passwd", "/static/none.css"]
)
async def test_nothing_outside_the_static_folders_is_served(path):
    assert (await AsyncClient().get(path)).status_code == 404


async def test_other_paths_are_passed_on_without_access_to_the_disk(rf, monkeypatch):
    async def view(request):
        return "the view"

    middleware = StaticFiles(view)
    monkeypatch.setattr(middleware, "find_file", lambda url: pytest.fail("looked"))
    assert await middleware(rf.get("/live")) == "the view"


@pytest.mark.parametrize("path", sorted((settings.BASE_DIR / "static/css").glob("*.css")), ids=lambda path: path.name)
def test_font_sizes_come_from_the_scale(path):
    """Pixels are allowed only in pictures, which are scaled as a whole, and for the root of the wall. On a very large
    screen the root of a page is larger.
    """
    sizes = re.findall(r"font(?:-size)?: ([^;]*?\d[^;]*);", path.read_text())
    assert [
        one for one in sizes if not re.match(r"\d+px$|150%$|\.75em$|(400 )?var\(--|clamp\(16px, min\(1\.6667vh", one)
    ] == []
