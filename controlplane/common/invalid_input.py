"""The exception for refused input: REST answers 422 with its problems, pages show each beside its field."""

from router.contract.problem import Problem


class InvalidInput(ValueError):
    def __init__(self, *problems: Problem, message: str = "") -> None:
        self.problems = list(problems)
        super().__init__(message or "; ".join(f"{problem.path}: {problem.text}" for problem in problems))

    @property
    def problem(self) -> Problem:
        """Return the only or first problem."""
        return self.problems[0]


def invalid(path: str, value: object, message: str, allowed: str = "") -> InvalidInput:
    """Return the exception for one field."""
    problem = Problem(path, value, message, allowed)
    return InvalidInput(problem, message=problem.text)
