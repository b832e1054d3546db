"""The web server in front of Django, with the bounds on what a client may send (docs/limits.md)."""
