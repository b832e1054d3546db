"""The KV event publishers of the newest engines, and the events that they encode, loaded from their wheels."""

import __future__

import ast
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import zmq

from router.tests.contracts.wheels import sources
from router.tests.kv_events.encode_published import ENGINES, definitions


def structs(engine: str) -> dict[str, Any]:
    path, _, _ = ENGINES[engine]
    return definitions(sources(engine, path)[path])


def publisher(engine: str) -> dict[str, Any]:
    """Return the engine's publisher and its events."""
    path, _, _ = ENGINES[engine]
    tree = ast.parse(sources(engine, path)[path])
    tree.body = [node for node in tree.body if getattr(node, "name", "") in ("EventPublisher", "ZmqEventPublisher")]
    library = {"ABC": ABC, "abstractmethod": abstractmethod, "Queue": queue.Queue, "count": count, "deque": deque}
    modules = {
        "atexit": SimpleNamespace(register=bool),
        "queue": queue,
        "threading": threading,
        "time": time,
        "zmq": zmq,
        "msgspec": msgspec,
        "KVEventsConfig": dict,
    }
    made = {**structs(engine), **library, **modules, "logger": logging.getLogger(engine)}
    exec(compile(tree, path, "exec", flags=__future__.annotations.compiler_flag), made)
    return made
