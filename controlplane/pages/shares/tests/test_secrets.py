"""Shares show no text that someone typed: each text of a frame is in turn replaced by such a text."""

import json
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import redis
from msgspec import Struct, structs

from controlplane.live.dashboard.frame.build import FrameInputs, build_frame
from controlplane.live.dashboard.step import read
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.shares import badge, view
from router.contract.redis.delivery import DeliveryLine
from router.contract.redis.fleet_status import FleetEvent, NodeReport, ScalingAdvice, StepReport
from router.contract.redis.sample import TierSample
from router.contract.redis.use import SavingLine

SENTENCE = "two secret words"
WORD = "sesame"
# Names without blanks, by which a share distinguishes things
NAMES = {
    "FrameInputs.fleets (key)",  # names of pools
    "PublishedInstance.id",
    "FleetValue.policy",
    "PolicyValue.policy",
    "DeliveryLine.policy",
    "RouterStatus.aliases (key)",  # names of models
    "FrameInputs.steps (key)",  # names of the control worker's steps
}
TYPED = {
    *("FleetEvent.text", "FleetEvent.actor", "FleetEvent.subject", "FleetValue.halted", "PublishedInstance.reason"),
    *("DeliveryLine.why", "DeliveryLine.ended_by", "RouterStatus.degraded", "ScalingAdvice.why", "StepReport.error"),
}
Change = Callable[[str], Any]


def changed(value: Any, hint: Any, where: str) -> Iterator[tuple[str, Change]]:
    """Return each text below a value: its type and field, and the value with another text in its place."""
    if isinstance(value, Struct):
        hints = typing.get_type_hints(type(value))
        for name in value.__struct_fields__:
            for path, change in changed(getattr(value, name), hints[name], f"{type(value).__name__}.{name}"):
                yield path, lambda text, name=name, change=change: structs.replace(value, **{name: change(text)})
    elif isinstance(value, str) or (value is None and str in _alternatives(hint)):
        yield where, lambda text: text
    elif isinstance(value, tuple | list | frozenset):
        yield from _of_many(value, hint, where)
    elif isinstance(value, Mapping):
        yield from _of_mapping(value, hint, where)


def _of_many(value: Any, hint: Any, where: str) -> Iterator[tuple[str, Change]]:
    [inner, *_] = [*typing.get_args(hint), Any]
    items = [*value]
    if inner is str:
        yield where, lambda text: type(value)((*items, text))
        return
    for i, item in enumerate(items):
        for path, change in changed(item, inner, where):
            yield path, lambda text, i=i, change=change: type(value)((*items[:i], change(text), *items[i + 1 :]))


def _of_mapping(value: Mapping[str, Any], hint: Any, where: str) -> Iterator[tuple[str, Change]]:
    key, inner = typing.get_args(hint) or (str, Any)
    example = next(iter(value.values()), {str: "", int: 1, float: 1.0}.get(inner))
    if key is str and example is not None:
        yield f"{where} (key)", lambda text: {**value, text: example}
    for name, item in value.items():
        for path, change in changed(item, inner, where):
            yield path, lambda text, name=name, change=change: {**value, name: change(text)}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def all_changes(inputs: FrameInputs) -> Iterator[tuple[str, Change]]:
    hints = typing.get_type_hints(FrameInputs)
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        for path, change in changed(value, hints[field.name], f"FrameInputs.{field.name}"):
            yield path, lambda text, name=field.name, change=change: replace(inputs, **{name: change(text)})


def delivery(at: float) -> DeliveryLine:
    return DeliveryLine(
        delivery=7, policy="default", pools=("demo",), base="v3", candidate="v4", state="aborted", word="aborted",
        step="canary 25 %", figure="heavy 1.04× (0.97–1.12×)", next_at=at + 60, since=at - 60, why="it was slow",
        ended_by="ada",
    )  # fmt: skip


@pytest.fixture
def whole(live_redis: redis.Redis) -> tuple[float, FrameInputs]:
    """Return a frame's inputs of every kind, with every problem that a page can report."""
    now = time.time()
    fleet = FakeFleet(live_redis, size=4)
    fleet.states = {"demo-1": ("failed", "out of memory"), "demo-2": ("draining", "by ada"), "demo-3": ("starting", "")}
    fleet.slo = {"warm": 1.0}
    fleet.write(now)
    inputs, _ = read(live_redis, now)
    [router] = inputs.routers.values()
    windows = router.classes["demo"]
    refusing = structs.replace(windows["warm"], refused=9, refusals={"saturated": 9})
    advice = ScalingAdvice(
        pool="demo", at=now, changed_at=now, replicas=4, mode="advisory", advised=5, why="a queue grows"
    )
    saving = SavingLine(
        policy="default", version=3, before=2, pool="demo", preview=1, requests=2_000, at=now, gpu_s=0.2, dollars=0.1
    )
    kinds = ("note", "failed", "policy.published", "node", "scale")
    subjects = ("demo", "demo-1", "policy default v3", "gpu-1", "demo")
    sample = structs.replace(inputs.samples["demo-0"], kv_tiers={"host": TierSample(read_bytes_per_s=1e9)})
    changes: dict[str, Any] = {
        "samples": {**inputs.samples, "demo-0": sample},
        "fleets": {"demo": structs.replace(inputs.fleets["demo"], halted="it failed twice", policy="default")},
        "routers": {
            "router-1": structs.replace(
                router,
                degraded=("Redis is away",),
                classes={"demo": {**windows, "warm": refusing}},
                aliases={"demo": {"chat": 120}},
            )
        },
        "events": tuple(
            FleetEvent(at=now - i, kind=kind, subject=subject, text="so it was", actor="ada", pools=("demo",))
            for i, (kind, subject) in enumerate(zip(kinds, subjects, strict=True))
        ),
        "scaling": {"demo": advice},
        "deliveries": (delivery(now),),
        "savings": (saving,),
        "nodes": (NodeReport(name="local", last_seen=now - 60, missed_at=now - 60),),
        "steps": {
            "fleet.reconcile": StepReport(
                at=now - 90, every_s=1.0, took_s=0.1, what="starting instances", worker="control@a", error="locked"
            )
        },
        "control_at": now,
    }
    return now, replace(inputs, **changes)


def served(now: float, inputs: FrameInputs) -> Iterator[str]:
    """Everything that shares of a frame show."""
    frame = build_frame(now, inputs)
    for pool in ("", "demo"):
        shown = view.frame_of(frame, pool)
        yield json.dumps(shown, ensure_ascii=False)
        for found in shown["pools"]:
            state = badge.badge(shown, found, now)
            yield badge.svg(state) + json.dumps(badge.shields(state))


def test_no_sentence_of_any_text_field_reaches_a_share(whole: tuple[float, FrameInputs]) -> None:
    now, inputs = whole
    leaks = {path for path, change in all_changes(inputs) if SENTENCE in "".join(served(now, change(SENTENCE)))}
    assert leaks == set()
    pages = {path for path, change in all_changes(inputs) if SENTENCE in json.dumps(build_frame(now, change(SENTENCE)))}
    assert pages >= TYPED  # as an operator reads on Live


def test_only_names_of_things_reach_a_share_of_all_words(whole: tuple[float, FrameInputs]) -> None:
    now, inputs = whole
    leaks = {path for path, change in all_changes(inputs) if WORD in "".join(served(now, change(WORD)))}
    assert leaks == NAMES


def test_a_field_that_nobody_declared_is_not_shared(whole: tuple[float, FrameInputs]) -> None:
    frame: Any = build_frame(*whole)
    for row in (frame, *frame["pools"].values(), *frame["deliveries"], *frame["events"], *frame["attention"]):
        row["remark"] = WORD
    frame["instances"]["remark"] = [WORD] * len(frame["instances"]["id"])
    for key in ("routers", "nodes"):
        frame[key]["remark"] = [WORD]
    assert WORD not in json.dumps([view.frame_of(frame, pool) for pool in ("", "demo")])
