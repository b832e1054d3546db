from django.core.management.base import BaseCommand

from fleet import services


class Command(BaseCommand):
    help = "Print the fleet document; applying it changes nothing."

    def handle(self, *args: object, **options: object) -> None:
        self.stdout.write(services.export_yaml(), ending="")
