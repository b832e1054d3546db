"""The roles of users, lowest first. What each may do: permissions.py."""

from typing import Literal

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
