"""Ports of a node: recorded in the database, and checked before each start."""

import random
import socket
from collections.abc import Iterable

from django.conf import settings
from django.db import IntegrityError, transaction

from fleet.models import Instance, Port

POD_PORT = 8000  # first port of a Pod; each Pod has its own address, so all use the same ports


class NoPort(Exception):
    """No port is free in the range."""


def in_pod(uses: Iterable[str]) -> dict[str, int]:
    return {use: POD_PORT + index for index, use in enumerate(uses)}


def ports_for(instance: Instance, uses: Iterable[str]) -> dict[str, int]:
    """One free port for each use, if possible the previous one."""
    wanted = tuple(uses)
    held = {port.use: port for port in instance.ports.all()}
    for use in wanted:
        port = held.get(use)
        if port is not None and (port.node != instance.node or not is_free(port.number)):
            port.delete()
            del held[use]
    return {use: held[use].number if use in held else _take(instance, use) for use in wanted}


def _take(instance: Instance, use: str) -> int:
    first, last = settings.ENGINE_PORTS
    taken = set(Port.objects.filter(node=instance.node).values_list("number", flat=True))
    for number in _shuffled_from(first, last):
        if number not in taken and is_free(number) and _claim(instance, use, number):
            return number
    raise NoPort(f"no free port between {first} and {last} on node {instance.node} (WEIR_ENGINE_PORTS)")


def _shuffled_from(first: int, last: int) -> list[int]:
    # In order, two fleets that start together on one host would compete for each port.
    numbers = list(range(first, last + 1))
    begin = random.randrange(len(numbers))  # noqa: S311 - not a secret
    return numbers[begin:] + numbers[:begin]


def _claim(instance: Instance, use: str, number: int) -> bool:
    try:
        with transaction.atomic():
            Port.objects.create(instance=instance, node=instance.node, use=use, number=number)
    except IntegrityError:
        return False
    return True


def is_free(number: int) -> bool:
    with socket.socket() as probe:
        # Like servers: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", number))  # noqa: S104 - a listener on any address blocks the port
        except OSError:
            return False
    return True
