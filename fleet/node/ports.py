"""Allocates ports of a node: recorded in the database, and checked before each start.
A use may have consecutive ports, one for each data-parallel rank; those after the first are recorded as `events+1`, ….
"""

import random
import socket
from collections.abc import Iterable, Mapping

from django.conf import settings
from django.db import IntegrityError, transaction

from fleet.models import Instance, Port

POD_PORT = 8000  # first port in a Pod; each Pod has its own address, so all Pods can use the same ports


class NoPort(Exception):
    """No port of the range is free."""


NO_SPANS: Mapping[str, int] = {}


def in_pod(uses: Iterable[str], spans: Mapping[str, int] = NO_SPANS) -> dict[str, int]:
    ports, number = {}, POD_PORT
    for use in uses:
        if span := spans.get(use, 1):
            ports[use], number = number, number + span
    return ports


def ports_for(instance: Instance, uses: Iterable[str], spans: Mapping[str, int] = NO_SPANS) -> dict[str, int]:
    """Return the first port of each use, if possible the same as before."""
    wanted = _names(uses, spans)
    held = {port.use: port for port in instance.ports.all()}
    for name in held.keys() - {name for names in wanted.values() for name in names}:
        if "+" in name:
            held[name].delete()
    return {use: _kept(instance, names, held) or _take(instance, names) for use, names in wanted.items()}


def _names(uses: Iterable[str], spans: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the names under which each use's ports are recorded."""
    counts = {use: spans.get(use, 1) for use in uses}
    return {use: [use, *(f"{use}+{more}" for more in range(1, n))] for use, n in counts.items() if n}


def _kept(instance: Instance, names: list[str], held: Mapping[str, Port]) -> int | None:
    """Return the first of the held ports, if all are still free and consecutive; otherwise release them."""
    ports = [held[name] for name in names if name in held]
    numbers = [port.number for port in ports]
    fits = len(ports) == len(names) and numbers == list(range(numbers[0], numbers[0] + len(names)))
    if fits and all(port.node == instance.node and is_free(port.number) for port in ports):
        return numbers[0]
    for port in ports:
        port.delete()
    return None


def _take(instance: Instance, names: list[str]) -> int:
    first, last = settings.ENGINE_PORTS
    taken = set(Port.objects.filter(node=instance.node).values_list("number", flat=True))
    for number in _shuffled_from(first, last - len(names) + 1):
        wanted = range(number, number + len(names))
        if taken.isdisjoint(wanted) and all(map(is_free, wanted)) and _claim(instance, names, number):
            return number
    several = f"{len(names)} free ports in a row" if len(names) > 1 else "free port"
    raise NoPort(f"no {several} between {first} and {last} on node {instance.node} (WEIR_ENGINE_PORTS)")


def _shuffled_from(first: int, last: int) -> list[int]:
    # If every search began at the start of the range, two fleets that start at the same time on one host would compete
    # for every port.
    numbers = list(range(first, last + 1))
    begin = random.randrange(max(len(numbers), 1))  # noqa: S311 - not a secret
    return numbers[begin:] + numbers[:begin]


def _claim(instance: Instance, names: list[str], first: int) -> bool:
    try:
        with transaction.atomic():
            for number, name in enumerate(names, first):
                Port.objects.create(instance=instance, node=instance.node, use=name, number=number)
    except IntegrityError:
        return False
    return True


def is_free(number: int) -> bool:
    with socket.socket() as probe:
        # A port in TIME_WAIT counts as free, as for servers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", number))  # noqa: S104 - a listener on any address blocks the port
        except OSError:
            return False
    return True
