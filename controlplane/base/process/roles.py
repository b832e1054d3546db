"""The roles of users, lowest first; permissions.py defines what each may do."""

from typing import Literal

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = ("viewer", "operator", "admin")
