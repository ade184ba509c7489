"""Our accountants against dp-accounting and prv-accountant: soundness, width, CPU seconds and memory on the same cases.

Every case is asked of every method in this process, after one warm-up question, with CPU seconds of the process as the
clock; peak memory is that of the allocations during a second call (tracemalloc, above what the imports hold). The truth
of a case is bracketed by its rigorous reference (tests/data/accounting_cases.json) where there is one, by our proven
interval at relative width 1e-5 elsewhere; an upper bound below the bracket *under-reports*, and our own intervals must
meet the reference and the characteristic-function accountant, which shares no code with them; where the latter lies in
the bracket, looseness is measured from it.

`prv-accountant` is optional: without it its column says so. Run on one core:

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/accounting.py [--markdown FILE] [--cases N] [--no-memory]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import signal
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from optnoise.accounting import calibrate, epsilon
from optnoise.accounting.conversion import epsilon_at
from optnoise.accounting.event import Event
from optnoise.accounting.renyi import renyi_curve
from optnoise.accounting.renyi_accountant import Renyi
from optnoise.mechanisms import GammaLaplace, Gaussian, Laplace, Mechanism, parse
from rich.console import Console
from rich.table import Table

REFERENCES = Path(__file__).resolve().parents[1] / "tests" / "data" / "accounting_cases.json"
LIMIT = 30.0
"""CPU seconds after which a call is given up."""

MIXTURE = parse("lmo:a1=0.1,a3=0.1,a4=0.1,theta=0.5,k=1,rate=5,low=1,high=2")


@dataclasses.dataclass(frozen=True)
class Case:
    """`steps` Poisson-sampled releases of scalar noise (units of C), at `delta`; `bracket` of ε, where it is known."""

    name: str
    mechanism: Mechanism
    rate: float
    steps: int
    delta: float
    bracket: tuple[float, float] | None = None

    @property
    def settings(self) -> dict:
        """Arguments of `optnoise.accounting.epsilon` but the mechanism."""
        return {"delta": self.delta, "steps": self.steps, "sampling_rate": self.rate, "dimension": 1}

    @property
    def event(self) -> Event:
        return Event(self.mechanism, 1.0, self.steps, self.rate, None if self.mechanism.isotropic else 1)


def cases() -> list[Case]:
    """Training runs as they are published, edges, fixed-seed draws, and the reference cases."""
    return [*_training(), *_edges(), *_drawn(), *_references()]


def _training() -> Iterator[Case]:
    for name, sigma, batch, records, epochs, delta in (
        ("MNIST, ε≈1", 1.3, 256, 60_000, 15, 1e-5),
        ("MNIST, ε≈3", 1.1, 256, 60_000, 60, 1e-5),
        ("MNIST, ε≈7", 0.7, 256, 60_000, 45, 1e-5),
        ("CIFAR-10, big batch", 3.0, 4096, 50_000, 205, 1e-5),
        ("CIFAR-10, small batch", 1.0, 512, 50_000, 90, 1e-5),
        ("CIFAR-10, bigger batch", 9.4, 16_384, 50_000, 300, 1e-5),
        ("ImageNet", 2.5, 16_384, 1_281_167, 90, 8e-7),
        ("SST-2 fine-tuning", 0.92, 1000, 67_349, 3, 1e-5),
        ("QNLI fine-tuning", 0.79, 2000, 104_743, 6, 5e-6),
        ("MNLI fine-tuning", 0.7, 6000, 392_702, 3, 1e-6),
        ("E2E generation", 0.7, 1024, 42_061, 10, 8e-6),
        ("language model", 0.45, 8192, 10_000_000, 4, 1e-8),
    ):
        yield Case(name, Gaussian(sigma), batch / records, max(round(epochs * records / batch), 1), delta)


def _edges() -> Iterator[Case]:
    yield Case("Gaussian, tiny q", Gaussian(1.0), 1e-5, 100_000, 1e-6)
    yield Case("Gaussian, tiny q and δ", Gaussian(4.0), 3.3e-4, 10_000, 1e-18)
    yield Case("Gaussian, small σ", Gaussian(0.4), 0.005, 100, 1e-5)
    yield Case("Gaussian, tiny σ, rare losses", Gaussian(0.3), 1e-6, 40_000, 1e-10)
    yield Case("Gaussian, large T", Gaussian(100.0), 0.1, 1_000_000, 1e-8)
    yield Case("Gaussian, large T and ε", Gaussian(2.0), 0.05, 100_000, 1e-6)
    yield Case("Gaussian, q near 1", Gaussian(20.0), 0.999, 300, 1e-6)
    yield Case("Gaussian, one sampled step", Gaussian(1.0), 0.1, 1, 1e-6)
    yield Case("Gaussian, δ = 1e-30", Gaussian(5.0), 0.02, 3000, 1e-30)
    yield Case("Gaussian, δ = 0.1", Gaussian(1.0), 0.02, 1000, 0.1)
    yield Case("Laplace, sampled", Laplace(2.0), 0.01, 2000, 1e-6)
    yield Case("Laplace, large scale and T", Laplace(500.0), 1e-4, 500_000, 1e-8)
    yield Case("Laplace, one step", Laplace(2.0), 0.05, 1, 1e-6)
    yield Case("Laplace, unsampled", Laplace(100.0), 1.0, 2000, 1e-7)


def _drawn() -> Iterator[Case]:
    rng = np.random.default_rng(20260101)
    for index in range(14):
        rate, steps = 10 ** rng.uniform(-4, -0.5), int(10 ** rng.uniform(1, 5))
        strength, delta = 10 ** rng.uniform(-1, 0.5), 10 ** rng.uniform(-12, -3)
        scale = min(max(rate * math.sqrt(steps) / strength, 0.4), 1000.0)
        family = ("Gaussian", "Laplace", "GammaLaplace", "mixture")[index % 4]
        mechanism = {
            "Gaussian": Gaussian(scale),
            "Laplace": Laplace(scale),
            "GammaLaplace": GammaLaplace(3.0, 1 / (3 * scale)),
            "mixture": MIXTURE.scaled(scale / 2.5),
        }[family]
        yield Case(f"{family}, drawn {index}", mechanism, rate, steps, delta)


def _references() -> Iterator[Case]:
    for item in json.loads(REFERENCES.read_text(encoding="utf-8")):
        parameters = item["mechanism"]["params"]
        mechanism = {
            "gaussian": lambda p: Gaussian(p["sigma"]),
            "laplace": lambda p: Laplace(p["b"]),
            "gamma_laplace": lambda p: GammaLaplace(p["shape"], p["scale"]),
        }[item["mechanism"]["type"]](parameters)
        bracket = item["eps_lower"], item["eps_upper"]
        yield Case(item["name"], mechanism, item["sampling_rate"], item["steps"], item["delta"], bracket)


# ---- methods ---------------------------------------------------------------------------------------------------------

Bounds = tuple[float, float]
Method = Callable[[Case], "Bounds | None"]  # (lower, upper) of ε; None: the case is not supported


def ours(accountant: str, relative_width: float) -> Method:
    def ask(case: Case) -> Bounds:
        answer = epsilon(case.mechanism, accountant=accountant, relative_width=relative_width, **case.settings)
        return answer.lower, answer.upper

    return ask


def our_characteristic(case: Case) -> Bounds | None:
    try:
        return ours("cf", 1e-8)(case)
    except ValueError:  # it says that it cannot resolve the case
        return None


def our_renyi(case: Case) -> Bounds:
    """The upper end alone, which is what a Rényi accountant reports."""
    return 0.0, Renyi().epsilon_upper([case.event], case.delta, 1e-3)


def their_event(case: Case):
    import dp_accounting

    if isinstance(case.mechanism, Gaussian):
        event = dp_accounting.GaussianDpEvent(case.mechanism.noise_multiplier)
    elif isinstance(case.mechanism, Laplace):
        event = dp_accounting.LaplaceDpEvent(case.mechanism.scale)
    else:
        return None
    if case.rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(case.rate, event)
    return dp_accounting.SelfComposedDpEvent(event, case.steps)


def theirs(kind: str) -> Method:
    """dp-accounting with its default settings."""
    from dp_accounting import UnsupportedEventError
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def ask(case: Case) -> Bounds | None:
        event = their_event(case)
        if event is None:
            return None
        accountant = PLDAccountant() if kind == "pld" else RdpAccountant()
        try:
            accountant.compose(event)
        except UnsupportedEventError:
            return None
        return 0.0, float(accountant.get_epsilon(case.delta))

    return ask


def prv() -> Method | str:
    """prv-accountant asked for an error of 1 % of ε (of at least 1e-3); a message where it is not installed."""
    try:
        from prv_accountant import LaplaceMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant
    except ImportError:
        return "prv-accountant is not installed: its column is left out (pip install prv-accountant)"

    def ask(case: Case) -> Bounds | None:
        if isinstance(case.mechanism, Gaussian):
            law = PoissonSubsampledGaussianMechanism(
                sampling_probability=case.rate, noise_multiplier=case.mechanism.noise_multiplier
            )
        elif isinstance(case.mechanism, Laplace) and case.rate == 1:
            law = LaplaceMechanism(mu=1 / case.mechanism.scale)
        else:
            return None
        about = 0.01 * max(epsilon(case.mechanism, accountant="rdp", **case.settings).upper, 0.1)
        accountant = PRVAccountant(
            prvs=law, max_self_compositions=case.steps, eps_error=about, delta_error=1e-3 * case.delta
        )
        lower, _, upper = accountant.compute_epsilon(delta=case.delta, num_self_compositions=case.steps)
        return float(lower), float(upper)

    return ask


def methods() -> tuple[dict[str, Method], list[str]]:
    chosen: dict[str, Method] = {
        "ours pld 1e-3": ours("pld", 1e-3),
        "ours pld 1e-5": ours("pld", 1e-5),
        "ours cf": our_characteristic,
        "ours rdp": our_renyi,
        "dp-accounting pld": theirs("pld"),
        "dp-accounting rdp": theirs("rdp"),
    }
    other = prv()
    if isinstance(other, str):
        return chosen, [other]
    return {**chosen, "prv-accountant": other}, []


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one method answered: bounds of ε, CPU seconds, peak MiB of its allocations; or why it did not."""

    bounds: Bounds | None
    seconds: float
    mebibytes: float = math.nan
    failure: str = ""

    @property
    def width(self) -> float:
        """Relative to the upper end."""
        if self.bounds is None:
            return math.nan
        lower, upper = self.bounds
        return 0.0 if upper == 0 else (upper - lower) / upper


class TooSlow(Exception):
    """A call that used more than LIMIT CPU seconds."""


def _give_up(*_) -> None:
    raise TooSlow(f"more than {LIMIT:.0f} s")


def timed(method: Method, case: Case) -> Outcome:
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            bounds = method(case)
        failure = "" if bounds is not None else "not supported"
    except Exception as error:  # a competitor's crash is a result, ours too: it fails the soundness gate
        bounds, failure = None, f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(bounds, time.process_time() - start, failure=failure)


def measured(method: Method, case: Case, memory: bool) -> Outcome:
    outcome = timed(method, case)
    if not memory or outcome.bounds is None or outcome.seconds > 0.2 * LIMIT:
        return outcome
    tracemalloc.start()
    timed(method, case)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return dataclasses.replace(outcome, mebibytes=peak)


@dataclasses.dataclass(frozen=True)
class Row:
    """All outcomes of a case and the bracket of its true ε."""

    case: Case
    outcomes: dict[str, Outcome]
    bracket: Bounds

    def under_reports(self, name: str) -> bool:
        bounds = self.outcomes[name].bounds
        return bounds is not None and bounds[1] < self.bracket[0] * (1 - 1e-12)

    @property
    def truth(self) -> float:
        """The estimate by characteristic functions where it lies in the bracket, else the bracket's upper end."""
        found = self.outcomes["ours cf"].bounds
        return found[1] if found and self.bracket[0] <= found[1] <= self.bracket[1] else self.bracket[1]

    def looseness(self, name: str) -> float:
        bounds = self.outcomes[name].bounds
        if bounds is None or self.truth == 0:
            return math.nan
        return bounds[1] / self.truth - 1

    @property
    def contradictions(self) -> list[str]:
        """Pairs of brackets of one truth that do not overlap: ours against the reference and against cf."""
        proven = [(n, self.outcomes[n].bounds) for n in ("ours pld 1e-3", "ours pld 1e-5", "ours cf")]
        others = [*proven, ("reference", self.case.bracket)]
        found = []
        for name, first in proven:
            for other, second in others:
                if first and second and first[1] < second[0] * (1 - 1e-12):
                    found.append(f"{name} ends at {first[1]!r}, below {other} from {second[0]!r}")
        return found


def measure(case: Case, chosen: dict[str, Method], memory: bool) -> Row:
    outcomes = {name: measured(method, case, memory) for name, method in chosen.items()}
    bracket = case.bracket or outcomes["ours pld 1e-5"].bounds or (0.0, math.inf)
    return Row(case, outcomes, bracket)


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """CPU seconds of `calibrate`, and the proven ε of its answer less the target, relative to the target."""

    seconds: float
    slack: float


def calibrated(row: Row) -> Calibrated | None:
    case, target = row.case, row.bracket[1]
    if not 0 < target < math.inf:
        return None
    start = time.process_time()
    noise = calibrate(case.mechanism, epsilon=target, accountant="pld", **case.settings)
    seconds = time.process_time() - start
    reached = epsilon(noise, accountant="pld", relative_width=1e-5, **case.settings).upper
    return Calibrated(seconds, reached / target - 1)


def order_slack(case: Case) -> float:
    """How far our order search is above the least ε over 20,000 real orders, relative."""
    curve, found = renyi_curve(case.event), our_renyi(case)[1]
    orders = 1 + np.geomspace(1e-4, 1e6, 2001)

    def at(orders: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = epsilon_at(orders, case.steps * curve.at(orders), math.log(case.delta))
        return np.where(np.isnan(values), np.inf, values)

    best = int(np.argmin(at(orders)))
    around = np.geomspace(orders[max(best - 1, 0)] - 1, orders[min(best + 1, 2000)] - 1, 200)
    least = min(float(np.min(at(1 + around))), case.steps * curve.largest_loss)
    return 0.0 if least <= 0 else found / least - 1


# ---- reporting -------------------------------------------------------------------------------------------------------


def _spread(values: list[float], form: str = "{:.3g}") -> str:
    values = [value for value in values if not math.isnan(value)]
    return f"{form} / {form}".format(statistics.median(values), max(values)) if values else "—"


def summary(rows: list[Row]) -> list[list[str]]:
    table = [["method", "answered", "under-reports", "upper/truth − 1", "width", "CPU ms", "MiB"]]
    for name in rows[0].outcomes:
        got = [row for row in rows if row.outcomes[name].bounds is not None]
        outcomes = [row.outcomes[name] for row in got]
        has_lower = name in ("ours pld 1e-3", "ours pld 1e-5", "ours cf", "prv-accountant")
        table.append(
            [
                name,
                f"{len(got)} of {len(rows)}",
                str(sum(row.under_reports(name) for row in got)),
                _spread([row.looseness(name) for row in got], "{:.2g}"),
                _spread([outcome.width for outcome in outcomes], "{:.2g}") if has_lower else "—",
                _spread([1e3 * outcome.seconds for outcome in outcomes]),
                _spread([outcome.mebibytes for outcome in outcomes]),
            ]
        )
    return table


def each(rows: list[Row]) -> list[list[str]]:
    names = list(rows[0].outcomes)
    table = [["case", "ε from", "to", *names]]
    for row in rows:
        line = [row.case.name, f"{row.bracket[0]:.6g}", f"{row.bracket[1]:.6g}"]
        for name in names:
            outcome, mark = row.outcomes[name], " !" if row.under_reports(name) else ""
            if outcome.bounds is None:
                line.append("—" if outcome.failure == "not supported" else outcome.failure.split(":")[0])
            else:
                line.append(f"{row.looseness(name):+.1e}{mark}, {1e3 * outcome.seconds:.3g} ms")
        table.append(line)
    return table


def gates(rows: list[Row], calibrations: list[Calibrated], slacks: list[float]) -> list[list[str]]:
    def got(name: str) -> list[Outcome]:
        return [row.outcomes[name] for row in rows]

    rough, fine, cf, rdp = got("ours pld 1e-3"), got("ours pld 1e-5"), got("ours cf"), got("ours rdp")
    contradictions = [text for row in rows for text in row.contradictions]
    wide = [o for o in rough if not o.width <= 1e-3]
    seconds = [o.seconds for o in rough]
    sharp = np.mean([o.width <= 1e-5 and o.seconds <= 2 for o in fine])
    memory = max((o.mebibytes for o in (*rough, *fine, *cf, *rdp) if not math.isnan(o.mebibytes)), default=math.nan)
    resolved = [o for o in cf if o.bounds is not None]
    lines = [
        ("no bound contradicted", not contradictions and not any(o.bounds is None for o in rough), len(contradictions)),
        ("width <= 1e-3 in every case", not wide, len(wide)),
        ("… in <= 50 ms, median", statistics.median(seconds) <= 0.05, f"{1e3 * statistics.median(seconds):.3g} ms"),
        ("… in <= 500 ms, worst", max(seconds) <= 0.5, f"{1e3 * max(seconds):.3g} ms"),
        ("width <= 1e-5 in <= 2 s, 90 % of the cases", sharp >= 0.9, f"{sharp:.0%}"),
        ("<= 150 MiB", math.isnan(memory) or memory <= 150, f"{memory:.0f} MiB"),
        (
            "cf: error <= 1e-8, <= 20 ms, medians",
            statistics.median(o.width for o in resolved) <= 2e-8
            and statistics.median(o.seconds for o in resolved) <= 0.02,
            f"{statistics.median(o.width for o in resolved):.1g}, "
            f"{1e3 * statistics.median(o.seconds for o in resolved):.3g} ms",
        ),
        (
            "rdp: <= 5 ms median",
            statistics.median(o.seconds for o in rdp) <= 0.005,
            f"{1e3 * statistics.median(o.seconds for o in rdp):.3g} ms",
        ),
        ("rdp: within 0.1 % of the best real order", max(slacks) <= 1e-3, f"{max(slacks):.1g}"),
        (
            "calibration in <= 0.5 s, worst",
            max(c.seconds for c in calibrations) <= 0.5,
            f"{1e3 * statistics.median(c.seconds for c in calibrations):.3g} / "
            f"{1e3 * max(c.seconds for c in calibrations):.3g} ms",
        ),
        (
            "calibrated ε within 1e-4 below its target, worst",
            all(-1e-4 <= c.slack <= 0 for c in calibrations),
            f"{min(c.slack for c in calibrations):.2g}",
        ),
    ]
    return [["gate", "met", "measured"], *([text, "yes" if met else "NO", str(value)] for text, met, value in lines)]


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"one core of {os.cpu_count()} ({model}), Python {platform.python_version()}, NumPy {np.__version__}"


def as_markdown(table: list[list[str]]) -> str:
    head, *body = [[cell.replace("|", "\\|") for cell in line] for line in table]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def shown(title: str, table: list[list[str]]) -> Table:
    result = Table(*table[0], title=title)
    for line in table[1:]:
        result.add_row(*line)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    parser.add_argument(
        "--cases", type=int, default=None, help="only every n-th case, so that about this many are left"
    )
    parser.add_argument("--no-memory", action="store_true", help="skip the second call that measures memory")
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, _give_up)
    console = Console()
    everything = cases()
    stride = max(len(everything) // options.cases, 1) if options.cases else 1
    chosen, notes = methods()
    for note in notes:
        console.print(note)
    for method in chosen.values():
        timed(method, Case("warm-up", Gaussian(1.1), 0.02, 200, 1e-5))
        timed(method, Case("warm-up", Laplace(1.1), 0.02, 200, 1e-5))
    rows = []
    for index, case in enumerate(everything[::stride]):
        rows.append(measure(case, chosen, not options.no_memory))
        print(f"\r{index + 1} cases", end="", file=sys.stderr, flush=True)
    calibrations = [found for row in rows if (found := calibrated(row)) is not None]
    slacks = [order_slack(row.case) for row in rows]
    title = f"{len(rows)} cases, median / worst; {machine()}, {datetime.date.today()}"
    tables = {
        f"Accountants: {title}": summary(rows),
        "Gates": gates(rows, calibrations, slacks),
        "Case by case: upper end over the truth, less 1 (! below the bracket); CPU time": each(rows),
    }
    for heading, table in tables.items():
        console.print(shown(heading, table))
    for text in [text for row in rows for text in row.contradictions]:
        console.print(f"[red]contradiction:[/red] {text}")
    if options.markdown:
        text = "\n".join(f"### {heading}\n\n{as_markdown(table)}" for heading, table in tables.items())
        options.markdown.write_text("\n".join([text, *notes]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
