"""Requests served by a prefill and a decode engine together, either of which may lie."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from router.contract.connectors import CONNECTORS
from router.tests.liar import halves, oracle, pages
from router.tests.liar.machine import LATE_S, LiarMachine
from router.tests.liar.oracle import Asked

ROLES = {"good-0": "prefill", "liar-0": "prefill", "good-1": "decode", "liar-1": "decode"}


class OffloadMachine(LiarMachine):
    @initialize(connector=st.sampled_from(sorted(CONNECTORS)), decoder=st.sampled_from(("decode", "both")))
    def begins(self, connector: str, decoder: str) -> None:  # type: ignore[override]
        """Start the engines; their role `decoder` decides whether decode engines may compute a prompt themselves."""
        self.connector = connector
        of_each: dict[str, dict[str, Any]] = {
            name: {"role": role if role == "prefill" else decoder, "connector": connector}
            for name, role in ROLES.items()
        }
        self.begin(list(ROLES), of_each, strategy="round_robin_pd", failure__prefill_timeout_s=float(LATE_S))

    @rule(which=st.sampled_from(sorted(ROLES)), page=st.sampled_from(pages.NAMES))
    def a_page_says(self, which: str, page: str) -> None:
        """Set the metrics page of a lying engine; a good engine's page is true."""
        self.stage.pages[which] = "true" if which.startswith("good") else page

    def judge(self, asked: Asked) -> None:
        halves.judge(asked, self.connector)
        if asked.charged is not None:
            oracle.judge_charge(asked)
        why = "" if self.is_poisoned else halves.hurts(asked, self.connector)
        assert not why, f"request {asked.number} of {asked.key}, on {self.tried(asked)}: {why}"
        if self.connector in halves.TOGETHER:
            self.alike = dict.fromkeys(self.names, 0)
        self.judge_poison(asked, may_be_one=halves.may_be_one(asked, self.connector))
