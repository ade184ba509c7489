"""Data sets of the Hugging Face hub, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .base import DataSource
from .files import Row


class HubSplit(NamedTuple):
    """One split of a loaded data set: our name for it, a `datasets.Dataset`, and what error messages call it."""

    name: str
    dataset: Any
    where: str

    def rows(self, columns: Iterable[str]) -> list[Row]:
        """Its rows, with `columns` alone. Raises ValueError naming the data set and a missing column."""
        columns = list(columns)
        for column in columns:
            if column not in self.dataset.column_names:
                raise ValueError(
                    f"{self.where}: expected the columns {', '.join(columns)}, got no column {column!r} "
                    f"among: {', '.join(self.dataset.column_names)}"
                )
        narrow = self.dataset.select_columns(columns)
        values = narrow[:]  # by column: much faster than row by row
        return [
            Row(f"{self.where}, row {number}", dict(zip(columns, row, strict=True)))
            for number, row in enumerate(zip(*(values[column] for column in columns), strict=True))
        ]

    def texts(self, row: Mapping[str, Any]) -> list[Any]:
        """Texts of a row of a GEM data set: its `target` for training, else its `references` where it has any."""
        return [row["target"]] if self.name == "train" else (row["references"] or [row["target"]])


def load_hub(name: str, config: str | None, splits: Mapping[str, str], source: DataSource) -> list[HubSplit]:
    """The splits of a hub data set (our name to its own); those that it lacks are absent.

    A data set whose main branch still holds a loading script, which `datasets` 4 and later do not run, is read from
    the Parquet files that the hub itself keeps of it (branch `refs/convert/parquet`).
    Raises ValueError naming the data set if it cannot be had; ImportError naming the extra `tasks`.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError("data from the hub need datasets: pip install 'optnoise[tasks]'") from error
    try:
        try:
            found = datasets.load_dataset(name, config, revision=source.revision)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            found = datasets.load_dataset("parquet", data_files=_converted(name, config, splits))
    except Exception as error:  # the library raises many kinds: no network, no such name, no such configuration, ...
        raise ValueError(
            f"cannot load {name!r} (configuration {config!r}) with datasets: {type(error).__name__}: {error}. "
            "Check the name and the network, or give a folder of local files as path"
        ) from error
    return [HubSplit(ours, found[theirs], f"{name}, {theirs}") for ours, theirs in splits.items() if theirs in found]


def _converted(name: str, config: str | None, splits: Mapping[str, str]) -> dict[str, str]:
    folder = f"hf://datasets/{name}@refs%2Fconvert%2Fparquet/{config or 'default'}"
    return {theirs: f"{folder}/{theirs}/*.parquet" for theirs in splits.values()}
