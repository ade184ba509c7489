"""How cost grows: training steps with the model and the batch, accounting with T and 1/q, search with candidates.

Training: a RoBERTa classifier of four layers with random weights; width, length and batch are varied one at a time
about a middle setting, engines and clock as in `clipping.py`. Accounting: the Gaussian and Laplace noise that just
meet ε at δ, so that every cell asks a question of practice. Search: the published grid's kernel on evenly spread
blocks of candidates, and one search over more and more families. CPU seconds of this process; medians, with the least
and the largest in brackets.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 taskset -c 0 python benchmarks/growth.py [--parts training accounting search]
        [--rounds N] [--markdown FILE] [--plot FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clipping
import numpy as np
import torch
from clipping import BASE, Setting
from optnoise.accounting import calibrate, epsilon
from optnoise.mechanisms import Laplace, Mechanism
from optnoise.search import PROPOSERS, Problem, grid, published, search

EPSILON, DELTA, WIDTH = 3.0, 1e-5, 1e-3
OURS = "optnoise"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text; `curves` are (label, x, y) for the plot, y over its first value where `relative`."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    axis: str
    curves: list[tuple[str, list[float], list[float]]]

    def markdown(self) -> str:
        lines = [self.head, ("---",) + ("---:",) * (len(self.head) - 1), *self.rows]
        return f"### {self.title}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def cpu_seconds(function: Callable[[], Any], rounds: int) -> tuple[float, float, float]:
    """(median, least, largest) of `rounds` calls after one that is not counted."""
    function()
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return statistics.median(times), min(times), max(times)


def spread(times: tuple[float, float, float], digits: int = 1, unit: float = 1e-3) -> str:
    middle, least, largest = (f"{seconds / unit:.{digits}f}" for seconds in times)
    return f"{middle} ({least} to {largest})"


# ---- training -------------------------------------------------------------------------------------------------------

MIDDLE = {"width": 256, "length": 64, "batch": 16}
TRAINING = {"width": (128, 256, 384, 768), "length": (32, 64, 128, 256, 512), "batch": (4, 8, 16, 32)}


def setting(width: int, length: int, batch: int, layers: int = 4, vocabulary: int = 50265) -> Setting:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64}
    return Setting(
        lambda: clipping.roberta(vocab_size=vocabulary, num_hidden_layers=layers, **sizes),
        is_language_model=False,
        batch=batch,
        length=length,
    )


def settings(quantity: str, values: tuple[int, ...]) -> dict[str, Setting]:
    return {f"{quantity}={value}": setting(**{**MIDDLE, quantity: value}) for value in values}


def training(quantity: str, values: tuple[int, ...], rounds: int, with_memory: bool) -> Table:
    """Steps without privacy and with `make_private`, the others of MIDDLE held."""
    rows = clipping.measure(settings(quantity, values), [BASE, OURS], rounds, "cpu", __file__ if with_memory else None)
    plain, private = rows[::2], rows[1::2]
    cells = []
    for value, base, own in zip(values, plain, private, strict=True):
        low, high = own["time_ratio_range"]
        memory = [f"{row['bytes'] / 2**20:.0f}" if "bytes" in row else "" for row in (base, own)]
        ratio = f"{own['memory_ratio']:.2f}" if "memory_ratio" in own else ""
        time_ratio = f"{own['time_ratio']:.2f} ({low:.2f} to {high:.2f})"
        cells.append((str(value), f"{base['seconds']:.3f}", f"{own['seconds']:.3f}", time_ratio, *memory, ratio))
    held = ", ".join(f"{name} {value}" for name, value in MIDDLE.items() if name != quantity)
    curves = [
        (engine, [float(value) for value in values], [row["seconds"] for row in found])
        for engine, found in ((BASE, plain), (OURS, private))
    ]
    head = (quantity, "s a step", "s, private", "time ratio", "MiB", "MiB, private", "memory ratio")
    return Table(f"A training step against {quantity} ({held})", head, cells, quantity, curves)


# ---- accounting -----------------------------------------------------------------------------------------------------

STEPS = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
INVERSE_RATES = (1, 10, 100, 1000, 10_000, 100_000)
FIXED_RATE, FIXED_STEPS = 0.01, 1000
SHAPES: dict[str, str | Mechanism] = {"Gaussian": "gaussian", "Laplace": Laplace(1.0)}


def accounting(quantity: str, cells: list[tuple[int, float]], values: tuple[int, ...], rounds: int) -> Table:
    """`epsilon` at relative width WIDTH, and `calibrate`, for each (steps, rate) of `cells`."""
    rows, curves = [], [(f"{name}, {what}", [], []) for name in SHAPES for what in ("epsilon", "calibrate")]
    for value, (steps, rate) in zip(values, cells, strict=True):
        texts = []
        for index, shape in enumerate(SHAPES.values()):
            asked, fitted = account(shape, steps, rate, rounds)
            for (_, xs, ys), times in zip(curves[2 * index : 2 * index + 2], (asked, fitted), strict=True):
                xs.append(float(value))
                ys.append(times[0])
            texts += [spread(asked), spread(fitted, 0)]
        rows.append((f"{value:,}", *texts))
    head = (quantity, *(f"{name}: {what}, ms" for name in SHAPES for what in ("ε", "calibration")))
    held = f"q = {FIXED_RATE}" if quantity == "T" else f"T = {FIXED_STEPS}"
    return Table(
        f"Accounting against {quantity} ({held}, ε = {EPSILON:g}, δ = {DELTA:g})", head, rows, quantity, curves
    )


def account(shape: str | Mechanism, steps: int, rate: float, rounds: int):
    """Times of ε and of calibration for the noise of this shape that meets the budget."""
    where = {"delta": DELTA, "steps": steps, "sampling_rate": rate, "dimension": 1}
    noise = calibrate(shape, epsilon=EPSILON, **where)
    found = epsilon(noise, relative_width=WIDTH, **where)
    if not found.upper - found.lower <= WIDTH * found.upper or found.upper > EPSILON:
        raise RuntimeError(f"expected ε within {WIDTH} and at most {EPSILON}, got {found} at {steps=}, {rate=}")
    asked = cpu_seconds(lambda: epsilon(noise, relative_width=WIDTH, **where), rounds)
    return asked, cpu_seconds(lambda: calibrate(shape, epsilon=EPSILON, **where), rounds)


# ---- search ---------------------------------------------------------------------------------------------------------

BLOCK = 512
BLOCKS = (1, 8, 64, 637)
SEARCHED = Problem(EPSILON, DELTA, steps=10, cost="variance")


def candidates(blocks: tuple[int, ...], rounds: int) -> Table:
    """The published bound of `blocks` blocks of candidates, evenly spread over the grid, and a candidate's share."""
    rows, counts, middles = [], [], []
    for count in blocks:
        times = cpu_seconds(lambda c=count: sweep(c), rounds)
        size = count * BLOCK
        rows.append((f"{size:,}", spread(times, 2), f"{times[0] / size * 1e9:.0f}"))
        counts.append(float(size))
        middles.append(times[0])
    head = ("candidates", "ms", "ns a candidate")
    return Table("The grid's kernel against candidates", head, rows, "candidates", [("kernel", counts, middles)])


def sweep(blocks: int) -> np.ndarray:
    """ε of each candidate, shape (blocks, BLOCK); tables are made anew, as in a sweep of the whole grid."""
    tables, offset = published._tables(), published.conversion(DELTA)
    found, order = np.empty((blocks, BLOCK)), np.empty(BLOCK, dtype=np.int64)
    for row, start in enumerate(np.linspace(0, grid.SIZE - BLOCK, blocks).astype(int)):
        published._sweep(int(start), *tables, offset, found[row], order)
    return found


def families(counts: tuple[int, ...], rounds: int) -> Table:
    """One search over the first families of the register; the first call of each is not counted."""
    rows, middles = [], []
    for count in counts:
        names = tuple(PROPOSERS)[:count]
        times = cpu_seconds(lambda n=names: search(SEARCHED, families=n, progress=False, top=1), rounds)
        rows.append((str(count), spread(times, 1, 1.0), names[-1]))
        middles.append(times[0])
    head = ("families", "s", "the last one")
    curves = [("search", [float(count) for count in counts], middles)]
    return Table("A search against families (ten scalar releases, least variance)", head, rows, "families", curves)


# ---- output ---------------------------------------------------------------------------------------------------------


def tables(parts: list[str], rounds: int, with_memory: bool) -> list[Table]:
    found: list[Table] = []
    if "training" in parts:
        found += [training(quantity, values, rounds, with_memory) for quantity, values in TRAINING.items()]
    if "accounting" in parts:
        found.append(accounting("T", [(steps, FIXED_RATE) for steps in STEPS], STEPS, rounds))
        found.append(accounting("1/q", [(FIXED_STEPS, 1 / n) for n in INVERSE_RATES], INVERSE_RATES, rounds))
    if "search" in parts:
        found += [candidates(BLOCKS, rounds), families(tuple(range(1, len(PROPOSERS) + 1)), 1)]
    return found


def plot(tables: list[Table], path: Path) -> None:
    """CPU seconds against each quantity, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(4, len(tables))
    lines = -(-len(tables) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(3.1 * columns, 2.6 * lines), squeeze=False)
    for axis in axes.flat[len(tables) :]:
        axis.set_axis_off()
    for axis, table in zip(axes.flat, tables, strict=False):
        for label, xs, ys in table.curves:
            axis.loglog(xs, ys, marker=".", label=label)
        values = table.curves[0][1]
        axis.tick_params(axis="x", which="minor", labelbottom=False)
        if max(values) <= 10 * len(values) * min(values):  # less than two decades: each value has its tick
            axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.set_xlabel(table.axis)
        axis.legend(fontsize=6)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("CPU seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = ["training", "accounting", "search"]
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--device", choices=["cpu"], default="cpu", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", nargs=2, metavar=("SETTING", "ENGINE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if arguments.memory_of:
        name, engine = arguments.memory_of
        quantity, value = name.split("=")
        print(clipping.peak_memory(settings(quantity, (int(value),))[name], engine, "cpu"))
        return
    found = tables(arguments.parts, arguments.rounds, not arguments.no_memory)
    text = "\n".join([clipping.environment("cpu") + "\n", *(table.markdown() for table in found)])
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
