"""A strict Content-Security-Policy blocks inline code, so pages must not contain any."""

import re
from pathlib import Path

from django.conf import settings

TEMPLATES = sorted((Path(settings.BASE_DIR) / "templates").rglob("*.html"))
INLINE = {
    "style attribute": re.compile(r"<[^>{]*\sstyle\s*=", re.I),
    "style element": re.compile(r"<style[\s>]", re.I),
    "event handler": re.compile(r"<[^>{]*\son[a-z]+\s*=", re.I),
    "hx-on": re.compile(r"\shx-on[:a-z-]*\s*=", re.I),
    "script with code": re.compile(r"<script(?![^>]*\ssrc=)[^>]*>", re.I),
    "javascript: address": re.compile(r"(href|action|src)\s*=\s*[\"']javascript:", re.I),
    "another origin": re.compile(r"(src|href|action)\s*=\s*[\"'](https?:)?//", re.I),
    "htmx trigger filter, which needs eval": re.compile(r"hx-trigger=\"[^\"]*\[", re.I),
}


def test_pages_have_no_inline_scripts_and_load_nothing_from_other_hosts():
    found = [
        f"{template}: {what}"
        for template in TEMPLATES
        for what, pattern in INLINE.items()
        if pattern.search(template.read_text())
    ]
    assert found == []


def test_every_table_has_a_caption():
    without = [
        f"{template.name}: {found[0]}"
        for template in TEMPLATES
        for found in re.finditer(r"<table[^>]*>(?!\s*<caption)", template.read_text())
    ]
    assert without == []


def test_there_are_templates_to_check():
    assert len(TEMPLATES) > 15


def test_pages_have_a_strict_content_security_policy(db, client):
    policy = client.get("/login").headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
