"""`check_mechanism`: everything that a noise promises, tested on one object; for families of one's own too.

The checks know nothing of the family: they integrate its density by plain quadrature, draw from its sampler, ask the
accountants, and play a distinguishing game. Wrong code fails with what was expected and what was found.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator

from . import _validate
from .base import Mechanism

LEVELS = ("law", "standard", "thorough")


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much a level does.

    Attributes:
        draws: for each test of the sampler.
        game_draws: for each side of the distinguishing game.
        questions: (steps, sampling rate, delta) that the accountants are asked.
    """

    draws: int
    game_draws: int
    questions: tuple[tuple[int, float, float], ...]


_EFFORTS = {
    "law": Effort(0, 0, ()),
    "standard": Effort(50_000, 100_000, ((1, 1.0, 1e-3), (10, 1.0, 1e-5), (100, 0.1, 1e-5))),
    "thorough": Effort(
        1_000_000,
        1_000_000,
        ((1, 1.0, 1e-3), (1, 1.0, 1e-8), (10, 1.0, 1e-5), (1, 0.2, 1e-4), (100, 0.1, 1e-5), (1000, 0.01, 1e-6)),
    ),
}


class CheckFailed(AssertionError):
    """One promise is broken; the message says what was expected and what was found."""


class NotApplicable(Exception):
    """A check has nothing to say about this noise; the message says why."""


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """One check. `status` is passed, failed or skipped; `detail` says why; `seconds` is the wall time."""

    name: str
    status: str
    detail: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What `check_mechanism` found; printing it gives a table."""

    mechanism: Mechanism
    level: str
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    def __str__(self) -> str:
        width = max(len(result.name) for result in self.results)
        lines = [f"{self.mechanism!r}, level {self.level}: {len(self.failures)} of {len(self.results)} checks failed"]
        for result in self.results:
            detail = f"  {result.detail}" if result.detail else ""
            lines.append(f"  {result.status:7s} {result.name:{width}s}{detail}")
        return "\n".join(lines)


class MechanismCheckError(AssertionError):
    """Some checks failed; `.report` has all results."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__(str(report))
        self.report = report


Check = Callable[[Mechanism, Effort], "str | None"]


def check_mechanism(mechanism: Mechanism, *, level: str = "standard", raise_on_failure: bool = True) -> CheckReport:
    """Test every promise of `mechanism`, noise drawn independently per coordinate.

    Args:
        mechanism: the noise; a family of one's own too (see `docs/mechanisms.md`).
        level: "law" (density, tail, quantile, moments, information, privacy loss, document: seconds), "standard"
            (also the sampler on every device there is, the accountants' agreement and a distinguishing game) or
            "thorough" (the same with twenty times the draws and more questions).
        raise_on_failure: whether to raise or to return a report with failures.

    Returns:
        The report. Statistical tests have fixed seeds and reject a right sampler with probability below 1e-5.

    Raises:
        MechanismCheckError: a check failed. The message is the report's table.
        ValueError: an argument is not what it should be.
    """
    if not isinstance(mechanism, Mechanism):
        raise ValueError(f"expected mechanism to be a Mechanism, got mechanism={mechanism!r}")
    _validate.one_of("level", level, LEVELS)
    report = CheckReport(mechanism, level, tuple(_run(c, mechanism, _EFFORTS[level]) for c in _checks(level)))
    if raise_on_failure and not report.passed:
        raise MechanismCheckError(report)
    return report


def _checks(level: str) -> Iterator[Check]:
    from . import _law_checks

    yield from _law_checks.CHECKS
    if level != "law":
        from . import _sampler_checks  # starts torch

        yield from _sampler_checks.CHECKS
        # Imports run from accounting to mechanisms; the checks that ask accountants live there and are found by name.
        package = (__package__ or "").rpartition(".")[0]
        yield from importlib.import_module(f"{package}.accounting.mechanism_checks").CHECKS


def _run(check: Check, mechanism: Mechanism, effort: Effort) -> CheckResult:
    name, start = check.__name__.removeprefix("check_"), time.perf_counter()
    try:
        status, detail = "passed", check(mechanism, effort) or ""
    except NotApplicable as reason:
        status, detail = "skipped", str(reason)
    except CheckFailed as failure:
        status, detail = "failed", str(failure)
    except Exception as error:  # a fault of the noise under test is a finding, whatever it raises
        status, detail = "failed", f"it raised {type(error).__name__}: {error}"
    return CheckResult(name, status, detail, time.perf_counter() - start)


def expect(condition: object, message: str) -> None:
    """Raise CheckFailed with `message` unless `condition` holds (NaN does not)."""
    if not condition:
        raise CheckFailed(message)
