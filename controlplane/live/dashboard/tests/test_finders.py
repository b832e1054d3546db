"""The chart library is served from its wheel."""

from pathlib import Path

from django.contrib.staticfiles import finders

from controlplane.doors.web.vendor_files import VendorFinder


def test_plotly_is_found_and_collected_but_nothing_else_from_its_wheel() -> None:
    found = finders.find("vendor/plotly.min.js")
    assert found is not None
    assert Path(found).stat().st_size > 1_000_000
    assert finders.find("vendor/widgetbundle.js") is None
    assert [(storage.prefix, name) for name, storage in VendorFinder().list(None)] == [("vendor", "plotly.min.js")]  # type: ignore[attr-defined]
