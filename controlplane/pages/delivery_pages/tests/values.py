"""Constructed deliveries and findings."""

from typing import Any

from controlplane.pages.delivery_pages.display.facts import Facts
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.plan.parsing import parse_plan
from controlplane.traffic.deliveries.plan.types import Plan
from controlplane.traffic.deliveries.states import State

NOW = 1_790_000_000.0
STEPS: list[dict[str, Any]] = [
    {"mode": "shadow", "for_s": 600},
    {"mode": "canary", "share": 0.05, "for_s": 600, "max_s": 3600},
    {"mode": "canary", "share": 0.25, "for_s": 900, "max_s": 3600, "then": "ask"},
    {"mode": "switchback", "block_s": 300, "pairs": 6},
    {"mode": "full", "bake_s": 1800},
]


def plan(*steps: dict[str, Any], **more: Any) -> Plan:
    return parse_plan({"steps": list(steps) or STEPS, **more}, pools=["chat"])


def facts(state: State, **more: Any) -> Facts:
    return Facts(**{"candidate": "v44", "base": "v43", "plan": plan(), "state": state, "now": NOW, **more})


def finding(metric: str = "ttft", request_class: str = "heavy", **more: Any) -> GuardFinding:
    made: dict[str, Any] = {
        "metric": metric,
        "request_class": request_class,
        "pool": "chat",
        "verdict": "inconclusive",
        "text": "one sentence",
        "estimate": 0.04,
        "lower": -0.03,
        "upper": 0.12,
        "worse": 0.1,
        "fine": 0.25 if metric != "slow" else None,
        "n": (204, 1900),
        "cells": (31.2, 60.0),
        "needed": metric in ("ttft", "tpot"),
    }
    return GuardFinding(**{**made, **more})
