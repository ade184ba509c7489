"""The `optnoise` command. It reads arguments, calls the packages and prints; errors are one line and exit code 2."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from . import __version__
from .accounting import EpsilonInterval, Release, rounded_down, rounded_up
from .cli_audit import audit_command
from .cli_check import check_command
from .cli_finetune import budget_of, finetune
from .cli_output import print_json
from .cli_plan import plan_command
from .mechanisms import FAMILIES, Mechanism, Noise, inline, parse

app = typer.Typer(
    name="optnoise",
    help="Optimal noise for differential privacy: search it, train with it, check its bound.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
reproduce = typer.Typer(help="Published claims, computed again.", no_args_is_help=True)
_out = Console()


def _print_version(asked: bool) -> None:
    if asked:
        _out.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


# ---- options shared by several commands ----------------------------------------------------------------------------

Spec = Annotated[str, typer.Argument(help="Noise: FAMILY:KEY=VALUE,… (gaussian:noise_multiplier=1) or a JSON file.")]
Delta = Annotated[float, typer.Option(help="δ, a probability in (0, 1).")]
Epsilon = Annotated[float, typer.Option(help="Target ε (no unit).")]
Steps = Annotated[int, typer.Option(help="Number of releases T (optimizer updates).")]
SamplingRate = Annotated[float, typer.Option(help="Poisson inclusion probability q of every record; 1: no sampling.")]
Dimension = Annotated[str | None, typer.Option(help="Number of coordinates, or inf for every dimension at once.")]
Adjacency = Annotated[str, typer.Option(help="add_or_remove_one, replace_one or replace_special.")]
Sampling = Annotated[str, typer.Option(help="poisson, or fixed_size (batches of fixed size, for replace_one).")]
Accountant = Annotated[str, typer.Option(help="best, exact, pld, rdp, or cf (a second opinion, not a guarantee).")]
RelativeWidth = Annotated[float, typer.Option(help="Width of the ε interval to aim at, as a fraction of ε.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.command()
def account(
    spec: Spec,
    delta: Delta,
    steps: Steps = 1,
    sampling_rate: SamplingRate = 1.0,
    dimension: Dimension = None,
    adjacency: Adjacency = "add_or_remove_one",
    sampling: Sampling = "poisson",
    accountant: Accountant = "best",
    relative_width: RelativeWidth = 1e-3,
    verify: Annotated[bool, typer.Option(help="Also ask the other accountants; disagreement is an error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the ε interval of a noise; its upper end is the guarantee."""
    from .accounting import epsilon

    mechanism = parse(spec)
    question = _question(delta, steps, sampling_rate, dimension, adjacency, sampling)
    interval = epsilon(mechanism, **question, accountant=accountant, relative_width=relative_width, verify=verify)
    _print_guarantee(mechanism, interval, question, accountant, as_json=as_json)
    if verify and not as_json:
        _out.print("verified: every other accountant that takes this question agrees", highlight=False)


@app.command()
def attack(
    spec: Spec,
    steps: Steps = 1,
    sampling_rate: SamplingRate = 1.0,
    dimension: Dimension = None,
    adjacency: Adjacency = "add_or_remove_one",
    sampling: Sampling = "poisson",
    prior: Annotated[float, typer.Option(help="Prior probability that the record is present, in (0, 1).")] = 0.5,
    plots: Annotated[Path | None, typer.Option(help="Also save the four plots to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what the best membership test gains: advantage, accuracy, posterior; each an interval that is proven."""
    from . import accounting

    mechanism = parse(spec)
    where = None if dimension is None else _dimension(dimension)
    release = accounting.Release(mechanism, steps, sampling_rate, where, adjacency, sampling)
    advantage = accounting.attack_advantage([release])
    accuracy = accounting.bayes_accuracy([release], prior=prior)
    band = accounting.posterior([release], prior=prior, type_i_error=_TYPE_I_ERRORS)
    files = [] if plots is None else _attack_plots(release, prior, plots)
    if as_json:
        columns = {"type_i_error": list(_TYPE_I_ERRORS), "lower": band.lower.tolist(), "upper": band.upper.tolist()}
        intervals = {"advantage": advantage._asdict(), "bayes_accuracy": accuracy._asdict()}
        print_json({**intervals, "prior": prior, "posterior": columns, "plots": [str(file) for file in files]})
        return
    table = Table(title="largest posterior that the record is present, by the test's false positive rate")
    for heading in ("false positive rate", "posterior, lower", "posterior, upper"):
        table.add_column(heading, justify="right")
    for error, low, high in zip(_TYPE_I_ERRORS, band.lower, band.upper, strict=True):
        table.add_row(f"{error:g}", rounded_down(float(low)), rounded_up(float(high)))
    for name, value in (("advantage (true - false positive rate)", advantage), ("Bayes accuracy", accuracy)):
        _out.print(f"{name} in [{rounded_down(value.lower)}, {rounded_up(value.upper)}]", highlight=False)
    _out.print(table)
    for file in files:
        _out.print(f"saved {file}", highlight=False, soft_wrap=True)


@app.command()
def calibrate(
    family: Annotated[str, typer.Argument(help="gaussian, laplace, or a noise (FAMILY:KEY=VALUE,…) used as a shape.")],
    epsilon: Epsilon,
    delta: Delta,
    steps: Steps = 1,
    sampling_rate: SamplingRate = 1.0,
    dimension: Dimension = None,
    adjacency: Adjacency = "add_or_remove_one",
    sampling: Sampling = "poisson",
    accountant: Accountant = "best",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the noise to this JSON file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Scale a noise to the least one that meets a budget; print its spec and its ε interval."""
    from . import accounting

    shape = family if family in FAMILIES and ":" not in family else parse(family)
    question = _question(delta, steps, sampling_rate, dimension, adjacency, sampling)
    mechanism = accounting.calibrate(shape, epsilon=epsilon, **question, accountant=accountant)
    interval = accounting.epsilon(mechanism, **question, accountant=accountant)
    if output is not None:
        _write(output, json.dumps(mechanism.spec(), indent=2) + "\n")
    _print_guarantee(mechanism, interval, question, accountant, as_json=as_json)


@app.command()
def search(
    epsilon: Annotated[float | None, typer.Option(help="Target ε (no unit).")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, a probability in (0, 1).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of releases T. Default: 1.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="Poisson inclusion probability q. Default: 1.")] = None,
    dimension: Annotated[str | None, typer.Option(help="Number of coordinates, or inf for all. Default: 1.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Take all five from a recipe (name or file) instead.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", help="SECTION.KEY=VALUE over the recipe.")] = None,
    cost: Annotated[
        str, typer.Option(help="mean_abs, variance, usefulness:GAMMA (maximise P(|x| <= GAMMA)) or quantile:P of |x|.")
    ] = "mean_abs",
    also: Annotated[
        list[str] | None,
        typer.Option(help="Another budget for the same noise: epsilon=E,delta=D,steps=T,sampling_rate=Q,dimension=N."),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(help="Family to search; repeat for several. Default: all.")
    ] = None,
    adjacency: Adjacency = "add_or_remove_one",
    seed: Annotated[int, typer.Option(help="Of the points at which families of many parameters are swept.")] = 0,
    resume: Annotated[Path | None, typer.Option(help="Folder that keeps finished families, to go on from.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result (best first) to this file.")
    ] = None,
    optimum: Annotated[
        bool, typer.Option("--optimum", help="One coordinate: also the optimum over all densities, with certificates.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the noise with the least cost under a budget; every result's ε is proven."""
    from . import search as engine

    given = {
        "epsilon": epsilon,
        "delta": delta,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "dimension": None if dimension is None else _dimension(dimension),
    }
    problem = engine.Problem(
        **budget_of(recipe, override or [], given),
        cost=cost,
        adjacency=adjacency,
        also=tuple(engine.Constraint.parse(text) for text in also or []),
    )
    if output is not None:
        _check_folder(output)
    families = tuple(family) if family else tuple(engine.PROPOSERS)
    result = engine.search(problem, families=families, progress=not (quiet or as_json), seed=seed, resume=resume)
    if optimum:
        result, _ = engine.with_optimum(result, progress=not (quiet or as_json))
    if output is not None:
        result.save(output)
    if as_json:
        print_json(result.document())
        return
    _out.print(engine.render(result))
    if output is not None:
        _out.print(f"written to {output}, unrounded", highlight=False, markup=False, soft_wrap=True)


app.command("plan")(plan_command)
app.command("finetune")(finetune)
app.command("check")(check_command)
app.command("audit")(audit_command)


@app.command("map")
def map_command(
    epsilon: Epsilon,
    delta: Delta,
    sampling_rate: SamplingRate = 1.0,
    steps: Annotated[list[int] | None, typer.Option("--steps", help="Releases T; repeat for several.")] = None,
    dimension: Annotated[
        list[str] | None, typer.Option("--dimension", help="Coordinates d or inf; repeat for several.")
    ] = None,
    cost: Annotated[str, typer.Option(help="mean_abs, variance or usefulness:GAMMA.")] = "variance",
    family: Annotated[
        list[str] | None, typer.Option(help="Family; repeat for several. Also: optimum (d = 1), l2_mechanism.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the cells, pictures and map.json.")] = Path(
        "regimes"
    ),
    jobs: Annotated[int, typer.Option(help="Processes.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Where other noise beats the calibrated Gaussian: cost ratios over T and d, cached cell by cell, and drawn."""
    from .search import Problem, regimes
    from .search.regime_plots import plot_regimes, write_html

    interactive = importlib.util.find_spec("plotly") is not None

    found = regimes.regime_map(
        Problem(epsilon, delta, 1, sampling_rate, 1, cost),
        steps=steps or [1, 10, 100, 1000],
        dimensions=[_dimension(d) for d in dimension or ["1", "4", "64", "1000", "inf"]],
        families=tuple(family) if family else regimes.QUICK,
        folder=output,
        n_jobs=jobs,
        progress=not quiet,
    )
    _write(output / "map.json", json.dumps(found.document(), indent=1, allow_nan=False) + "\n")
    for suffix in ("png", "svg"):
        plot_regimes(found, output / f"map.{suffix}")
        plot_regimes(found, output / f"best.{suffix}", by_family=False)
    if interactive:
        write_html(found, output / "map.html")
    table = Table("d \\ T", *(f"{t:g}" for t in found.steps), title="least cost over the Gaussian's, and whose")
    for d, row in zip(found.dimensions, found.cells, strict=True):
        table.add_row(f"{d:g}", *(f"{cell.best[1]:.4g} {cell.best[0]}" for cell in row))
    _out.print(table)
    _out.print(f"pictures and cells: {output}", highlight=False)
    if not interactive:
        _out.print("no map.html: it needs plotly, pip install 'optnoise[plots]'", highlight=False, markup=False)


@app.command()
def demo(
    output_dir: Annotated[Path, typer.Option(help="Folder of the table, the plots and the runs.")] = Path(
        "demo-output"
    ),
    as_json: AsJson = False,
) -> None:
    """Search a noise, fine-tune a small encoder with it on real text, print a table and save plots."""
    from .demo import run_demo
    from .finetune.memory import keep_freed_memory

    keep_freed_memory()
    document = run_demo(output_dir, console=Console(stderr=True) if as_json else _out)
    if as_json:
        print_json(document)


@reproduce.command("lmo-dp")
def reproduce_lmo_dp(
    delta: Delta,
    parameters: Annotated[
        list[Path] | None, typer.Option(help="JSON file in the authors' key names; repeatable. Default: two examples.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what each published LMO-DP parameter set guarantees, by dimension, and what other noise costs there."""
    from .search import published_rows, published_sets, read_parameters, render_rows

    sets = [read_parameters(file) for file in parameters] if parameters else published_sets()
    rows = published_rows(sets, delta=delta)
    if as_json:
        print_json({"rows": [row.document() for row in rows]})
        return
    _out.print(render_rows(rows), highlight=False, markup=False, soft_wrap=True)


@reproduce.command("laplace-mixing")
def reproduce_laplace_mixing(
    epsilon: Annotated[list[float], typer.Option(help="Pure ε of one scalar release; repeatable.")],
    as_json: AsJson = False,
) -> None:
    """Print the least E|x| of any mixture of Laplace noise over plain Laplace's: one scalar release, pure ε-DP."""
    from .search import best_laplace_mixture

    results = {value: best_laplace_mixture(value) for value in epsilon}
    if as_json:
        print_json({"rows": [{"epsilon": e, **r._asdict(), "ratio": r.ratio} for e, r in results.items()]})
        return
    _out.print("| ε | best mixture / Laplace | any noise / Laplace |\n| --- | --- | --- |", highlight=False)
    for value, result in results.items():
        ends = f"[{rounded_down(result.ratio[0])}, {rounded_up(result.ratio[1])}]"
        _out.print(f"| {value:g} | {ends} | {result.staircase / result.laplace:.5g} |", highlight=False, markup=False)


app.add_typer(reproduce, name="reproduce")


@app.command()
def version() -> None:
    """Print the version."""
    _out.print(__version__)


# ---- helpers -------------------------------------------------------------------------------------------------------


_TYPE_I_ERRORS = (0.001, 0.01, 0.05, 0.1)


def _attack_plots(release: Release, prior: float, folder: Path) -> list[Path]:
    """The privacy profile, the trade-off curve, the advantage over the steps, the posterior over the prior."""
    from . import accounting

    _check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    errors = [i / 50 for i in range(51)]
    largest = accounting.compose_epsilon([release], delta=1e-9).upper
    profile = [largest * i / 24 for i in range(25)] if 0 < largest < math.inf else [0.0, 1.0]
    steps = sorted({max(1, release.steps * i // 8) for i in range(1, 9)})
    curve = accounting.tradeoff_curve([release], type_i_error=errors)
    priors = [i / 20 for i in range(1, 20)]
    band = accounting.posterior([release], prior=priors, type_i_error=0.01)
    return [
        accounting.plot_privacy_profile([release], folder / "profile.png", epsilon=profile),
        accounting.plot_tradeoff(curve, folder / "tradeoff.png"),
        accounting.plot_attack_advantage(release, folder / "advantage.png", steps=steps),
        accounting.plot_posterior(band, folder / "posterior.png"),
    ]


def _question(
    delta: float, steps: int, sampling_rate: float, dimension: str | None, adjacency: str, sampling: str
) -> dict[str, Any]:
    return {
        "delta": delta,
        "steps": steps,
        "sampling_rate": sampling_rate,
        "dimension": None if dimension is None else _dimension(dimension),
        "adjacency": adjacency,
        "sampling": sampling,
    }


def _dimension(text: str) -> float:
    if text.strip().lower() in ("inf", "infinity"):
        return math.inf
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"expected dimension to be a number of coordinates or inf, got dimension={text!r}") from None
    return int(text) if text.strip().isdigit() else number


def _print_guarantee(
    mechanism: Noise, interval: EpsilonInterval, question: dict[str, Any], accountant: str, *, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                "mechanism": mechanism.spec(),
                "epsilon": interval_document(interval),
                **{key: _finite_or_text(value) for key, value in question.items()},
                "accountant": accountant,
                "variance": _finite_or_none(mechanism.variance),
                **({"mean_abs": _finite_or_none(mechanism.mean_abs)} if isinstance(mechanism, Mechanism) else {}),
            }
        )
        return
    _out.print(inline(mechanism), highlight=False, markup=False, soft_wrap=True)
    meaning = f"the guarantee is the upper end, {rounded_up(interval.upper)}"
    if accountant == "cf":
        meaning = "a second opinion whose error is estimated, not proven: not a guarantee"
    _out.print(
        f"epsilon in {interval.text()} at delta = {question['delta']!r}; {meaning}",
        highlight=False,
        soft_wrap=True,
    )


def interval_document(interval: EpsilonInterval) -> dict[str, Any]:
    """An interval for JSON: an infinite end is null, with "finite": false."""
    ends = {name: _finite_or_none(value) for name, value in interval._asdict().items()}
    return ends if all(math.isfinite(value) for value in interval) else {**ends, "finite": False}


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite_or_text(value: Any) -> Any:
    return "inf" if value == math.inf else value


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"expected the folder of output={str(path)!r} to exist; create it first")


def _write(path: Path, text: str) -> None:
    _check_folder(path)
    path.write_text(text, encoding="utf-8")


_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits with 0, or with 2 after one line on standard error that says what was wrong."""
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="optnoise", standalone_mode=False)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        message = _usage_message(error)
        if message is None:
            raise
        if message:  # none where a command without arguments has shown its help
            sys.stderr.write(f"optnoise: {message}\n")
        raise SystemExit(2) from None
    if code == _INTERRUPTED:  # typer returns it for Ctrl-C, without a word
        sys.stderr.write("optnoise: interrupted\n")
    raise SystemExit(code if isinstance(code, int) else 0)


def _usage_message(error: Exception) -> str | None:
    """One line for an error that the person at the keyboard can mend; None for a fault of ours."""
    from .search import SearchError

    if hasattr(error, "format_message"):  # typer's own usage errors; their class has moved between its versions
        text = str(error.format_message())  # type: ignore[attr-defined]
    elif isinstance(error, (ValueError, SearchError, OSError)):
        text = str(error)
    else:
        return None
    return " ".join(text.split())
