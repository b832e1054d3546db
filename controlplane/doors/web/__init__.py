"""The web server in front of Django, with limits on what a client may send (docs/limits.md)."""
