"""Pydantic's errors in the wording of the other checks."""

from datetime import datetime
from typing import Any, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from controlplane.common.input_errors import problems_of


class Part(BaseModel):
    name: str = Field("x", min_length=1, max_length=3)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    count: int = Field(1, ge=1, le=64)
    share: float = Field(0.5, gt=0, lt=1, allow_inf_nan=False)
    word: str = Field("ab", pattern="^[a-z]{2}$")
    flag: bool = True
    mode: Literal["replay", "twin"] = "twin"
    parts: list[Part] = Field([Part()], min_length=1, max_length=2)
    either: int | Part = 1
    at: AwareDatetime = Field(default_factory=lambda: datetime.now().astimezone())

    @field_validator("count")
    @classmethod
    def _even(cls, value: int) -> int:
        if value == 13:
            raise ValueError("13 is refused: {choose} another")
        return value


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        ({"count": "many"}, "count", "must be a whole number"),
        ({"count": 1.5}, "count", "must be a whole number"),
        ({"count": None}, "count", "must be a whole number"),
        ({"count": 0}, "count", "out of range; allowed: at least 1"),
        ({"count": 65}, "count", "out of range; allowed: at most 64"),
        ({"count": 13}, "count", "13 is refused: {choose} another"),
        ({"share": "x"}, "share", "must be a number"),
        ({"share": 0}, "share", "out of range; allowed: more than 0"),
        ({"share": 1}, "share", "out of range; allowed: less than 1"),
        ({"share": float("nan")}, "share", "must be a finite number"),
        ({"word": 5}, "word", "must be text"),
        ({"word": "abc"}, "word", "must match the pattern ^[a-z]{2}$"),
        ({"flag": "perhaps"}, "flag", "must be true or false"),
        ({"mode": "live"}, "mode", "must be replay or twin"),
        ({"parts": "x"}, "parts", "must be a list"),
        ({"parts": []}, "parts", "too few items; allowed: at least 1"),
        ({"parts": [{}] * 3}, "parts", "too many items; allowed: at most 2"),
        ({"parts": ["x"]}, "parts.0", "must be a mapping"),
        ({"parts": [{"name": ""}]}, "parts.0.name", "too short; allowed: a length of at least 1"),
        ({"parts": [{"name": "long"}]}, "parts.0.name", "too long; allowed: a length of at most 3"),
        ({"at": "soon"}, "at", "must be a date and time with its zone, such as 2026-11-23T12:00:00Z"),
        ({"at": "2026-11-23T12:00:00"}, "at", "must be a date and time with its zone, such as 2026-11-23T12:00:00Z"),
        ({"colour": "red"}, "colour", "unknown field"),
    ],
)
def test_a_problem_has_its_path_and_what_is_allowed(given: dict[str, Any], path: str, text: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Body.model_validate(given)
    (problem,) = problems_of(refused.value)
    assert (problem.path, problem.text) == (path, text)


def test_a_problem_has_its_value_unless_the_field_is_missing() -> None:
    class Needed(BaseModel):
        name: str
        count: int

    with pytest.raises(ValidationError) as refused:
        Needed.model_validate({"count": "many"})
    found = [(problem.path, problem.value, problem.text) for problem in problems_of(refused.value)]
    assert found == [("name", None, "must be given"), ("count", "many", "must be a whole number")]


def test_each_tried_form_of_a_value_has_a_problem() -> None:
    with pytest.raises(ValidationError) as refused:
        Body.model_validate({"either": "x"})
    assert {problem.text for problem in problems_of(refused.value)} == {"must be a whole number", "must be a mapping"}
