"""`manage.py sign_in_link NAME`: the way in while the identity provider is unreachable or has locked everybody out."""

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.people.accounts import services
from controlplane.people.audit.services import on_host


class Command(BaseCommand):
    help = "Print a link that signs the user in once, within 5 minutes."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="name of the user, such as admin")
        parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the pages, as browsers use it")

    def handle(self, *args: Any, name: str, url: str, **options: Any) -> None:
        try:
            path = services.make_sign_in_link(name, on_host())
        except get_user_model().DoesNotExist:
            names = get_user_model().objects.filter(is_active=True).order_by("username")[:8]
            known = ", ".join(user.username for user in names)
            raise CommandError(f"name: {name!r} is no active user; allowed: {known}") from None
        self.stdout.write(url.rstrip("/") + path)
