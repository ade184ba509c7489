"""Releases from and to other libraries' records: DpEvents of `dp_accounting`, the accountant history of Opacus.

A record is only as true as the run behind it. What each format takes for granted is said in the functions; what has no
`Release` is refused by name.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..mechanisms import Gaussian, Laplace, _validate
from .release import ADD_OR_REMOVE_ONE, ADJACENCIES, FIXED_SIZE, POISSON, REPLACE_ONE, Release

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_MOST_RECORDS = 10**9
_OPACUS_ACCOUNTANTS = ("rdp", "prv", "gdp")


# ---- dp_accounting -------------------------------------------------------------------------------------------------


def from_dp_event(event: DpEvent, *, dimension: float | None = 1, adjacency: str = ADD_OR_REMOVE_ONE) -> list[Release]:
    """The releases that a `dp_accounting` event describes.

    Gaussian and Laplace noise, Poisson sampling, sampling without replacement (`sampling="fixed_size"`, for
    `replace_one` only), composition and no-op events are read. An event's noise multiplier is s/C for values of norm at
    most C, as here. Several Gaussian events on one Poisson sample are read as the one with 1/σ² = Σ 1/σ_i²: seen
    together, Gaussian observations of one sample are its sufficient statistic with μ² = Σ μ_i², adaptively too (Dong,
    Roth and Su 2019, arXiv 1905.02383, Corollary 3.3), and sampling keeps that order (Zhu, Dong and Wang 2022, arXiv
    2106.08567, Theorem 11).

    Args:
        event: the event. Batches that were shuffled rather than sampled need other events than the sampled ones.
        dimension: number of coordinates of the *Laplace* events. 1 (a number) is what their accountants compute with.
            A Laplace event bounds an L1 norm by C, which is an L2 norm of at most C: more coordinates are safe, not
            tight.
        adjacency: the relation that the event is meant for; events do not carry it. Under `replace_one` the largest
            change is 2C. `dp_accounting` 0.6 agrees in its PLD accountant, while its RDP accountant computes with C:
            its ε under REPLACE_ONE is that of `add_or_remove_one`, too small for this relation.

    Raises:
        ImportError: `dp_accounting` is missing (the extra `interop`).
        ValueError: the event, or an event inside it, has no `Release`; the error names its class.
    """
    _validate.one_of("adjacency", adjacency, ADJACENCIES)
    return _Reader(_dp_accounting(), dimension, adjacency).read(event)


def to_dp_event(releases: Sequence[Release]) -> DpEvent:
    """The `dp_accounting` event of a composition; `from_dp_event` reads it back (with the same adjacency).

    Gaussian noise and Laplace noise on one coordinate have an event; void releases become none. Fixed-size batches
    become the smallest batch and data set with the same rate, since a release holds the rate only. An event does not
    carry the adjacency: give it to the accountant, and mind that the RDP accountant of `dp_accounting` 0.6 takes C for
    the largest change under REPLACE_ONE, not 2C.
    """
    dp = _dp_accounting()
    events = []
    adjacencies = {release.adjacency for release in releases}
    if len(adjacencies) > 1:
        raise ValueError(f"expected one adjacency in a composition, got {', '.join(sorted(adjacencies))}")
    for release in releases:
        if release.steps == 0 or release.sampling_rate == 0:
            continue
        event = _sampled_event(dp, release, _noise_event(dp, release))
        events.append(event if release.steps == 1 else dp.SelfComposedDpEvent(event, int(release.steps)))
    if not events:
        return dp.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "dp_accounting is not installed; it is in the extra `interop`: pip install 'optnoise[interop]'"
        ) from error
    return dp_accounting


class _Reader:
    """Reads events into releases; one method for each class of event that has any."""

    def __init__(self, dp: Any, dimension: float | None, adjacency: str) -> None:
        self._adjacency = adjacency
        self._non_private = dp.NonPrivateDpEvent
        self._readers: dict[type, Callable[[Any], list[Release]]] = {
            dp.NoOpDpEvent: lambda event: [],
            dp.GaussianDpEvent: lambda event: [self._release(Gaussian(event.noise_multiplier), None)],
            dp.LaplaceDpEvent: lambda event: [self._release(Laplace(event.noise_multiplier), dimension)],
            dp.ComposedDpEvent: lambda event: [release for part in event.events for release in self.read(part)],
            dp.SelfComposedDpEvent: self._self_composed,
            dp.PoissonSampledDpEvent: self._poisson,
            dp.SampledWithoutReplacementDpEvent: self._without_replacement,
        }

    def read(self, event: object) -> list[Release]:
        if isinstance(event, self._non_private):
            raise ValueError("expected a private event, got event=NonPrivateDpEvent: its epsilon is infinite")
        reader = self._readers.get(type(event))
        if reader is None:
            known = ", ".join(sorted(kind.__name__ for kind in self._readers))
            raise ValueError(
                f"expected event to be one of {known}, got event={type(event).__name__}: no Release for it"
            )
        try:
            return reader(event)
        except ValueError as error:
            raise ValueError(f"{type(event).__name__}: {error}") from error

    def _release(self, mechanism: Gaussian | Laplace, dimension: float | None) -> Release:
        return Release(mechanism, dimension=dimension, adjacency=self._adjacency)

    def _self_composed(self, event: Any) -> list[Release]:
        count = _validate.integer("count", event.count, minimum=0)
        return [dataclasses.replace(part, steps=part.steps * count) for part in self.read(event.event)]

    def _poisson(self, event: Any) -> list[Release]:
        rate = _validate.unit_interval("sampling_probability", event.sampling_probability)
        inner = self._on_one_sample(event.event, merge=True)
        if inner is None:
            return []
        if inner.sampling != POISSON:
            raise ValueError("a fixed-size sample of a Poisson sample has no Release")
        return [dataclasses.replace(inner, sampling_rate=rate * inner.sampling_rate)]  # tossed twice, independently

    def _without_replacement(self, event: Any) -> list[Release]:
        records = _validate.integer("source_dataset_size", event.source_dataset_size, minimum=1)
        size = _validate.integer("sample_size", event.sample_size, minimum=0)
        if size > records:
            raise ValueError(f"expected sample_size <= source_dataset_size={records}, got sample_size={size}")
        inner = self._on_one_sample(event.event, merge=False)
        if inner is None:
            return []
        if inner.sampling_rate != 1:
            raise ValueError("a sample of a sample without replacement has no Release")
        return [dataclasses.replace(inner, sampling_rate=size / records, sampling=FIXED_SIZE)]

    def _on_one_sample(self, event: object, *, merge: bool) -> Release | None:
        """The one release that is made on a sample (None: no release)."""
        parts = [part for part in self.read(event) if part.steps > 0]
        if len(parts) == 1 and parts[0].steps == 1:
            return parts[0]
        if not parts:
            return None
        gaussian = all(isinstance(part.mechanism, Gaussian) and part.sampling_rate == 1 for part in parts)
        if not (merge and gaussian and self._adjacency != REPLACE_ONE):
            raise ValueError(
                f"expected one release on each sample, got {sum(part.steps for part in parts)} of them on the same "
                "one: only Gaussian releases on a Poisson sample, without replace_one, have a Release together"
            )
        precision = math.fsum(part.steps / part.mechanism.variance for part in parts)
        return self._release(Gaussian(precision**-0.5), None)


def _noise_event(dp: Any, release: Release) -> Any:
    mechanism = release.mechanism
    if isinstance(mechanism, Gaussian):
        return dp.GaussianDpEvent(mechanism.noise_multiplier)
    if isinstance(mechanism, Laplace):
        if release.dimension == 1:
            return dp.LaplaceDpEvent(mechanism.scale)
        raise ValueError(
            f"expected dimension=1 for laplace noise, got dimension={release.dimension}: LaplaceDpEvent bounds an L1 "
            "norm, a Release an L2 norm"
        )
    raise ValueError(f"expected gaussian or laplace noise, got mechanism={mechanism!r}: no DpEvent describes it")


def _sampled_event(dp: Any, release: Release, event: Any) -> Any:
    rate = float(release.sampling_rate)
    if release.sampling != FIXED_SIZE:
        return event if rate == 1 else dp.PoissonSampledDpEvent(rate, event)
    ratio = fractions.Fraction(rate).limit_denominator(_MOST_RECORDS)
    if float(ratio) != rate:
        raise ValueError(
            f"expected sampling_rate to be batch size / records for at most {_MOST_RECORDS} records with "
            f"sampling={FIXED_SIZE}, got sampling_rate={rate!r}"
        )
    return dp.SampledWithoutReplacementDpEvent(ratio.denominator, ratio.numerator, event)


# ---- Opacus --------------------------------------------------------------------------------------------------------


def from_opacus_history(history: Iterable[Sequence[Any]] | Mapping[str, Any]) -> list[Release]:
    """The releases in the history of an Opacus accountant; Opacus itself is not needed.

    An entry is (noise multiplier, sample rate, steps): Gaussian noise of standard deviation σ·C, Poisson sampling,
    adding or removing a record. Opacus writes the same entries for a loader made with `poisson_sampling=False`, whose
    shuffled batches have no proven amplification here: do not import those, but state each epoch as one
    `Release(Gaussian(σ))`. Nor does an entry fit an update summed over k Poisson batches, for which Opacus writes k
    times the rate: one record can be drawn by several of them (microbatches of one Poisson batch are fine).

    Args:
        history: `accountant.history`, or `accountant.state_dict()` with its "history" (of an accountant "rdp", "prv" or
            "gdp": the record is the same, and what they would compute from it does not matter).

    Raises:
        ValueError: an entry is not such a triple, or out of range; the error names its place.
    """
    return [_from_entry(place, entry) for place, entry in enumerate(_entries(history))]


def to_opacus_history(releases: Sequence[Release]) -> list[tuple[float, float, int]]:
    """The history with which an Opacus accountant continues a composition: `accountant.history = …`.

    For Gaussian noise, Poisson sampling and adding or removing a record; other releases are refused. Equal neighbours
    in the list become one entry, and void releases none.
    """
    history: list[tuple[float, float, int]] = []
    for release in releases:
        if not isinstance(release.mechanism, Gaussian):
            raise ValueError(f"expected gaussian noise, got mechanism={release.mechanism!r}: Opacus records no other")
        if release.adjacency != ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"expected adjacency={ADD_OR_REMOVE_ONE}, got adjacency={release.adjacency}: Opacus knows no other"
            )
        noise, rate, steps = float(release.mechanism.noise_multiplier), float(release.sampling_rate), int(release.steps)
        if steps == 0 or rate == 0:
            continue
        if history and history[-1][:2] == (noise, rate):
            steps += history.pop()[2]
        history.append((noise, rate, steps))
    return history


def _entries(history: Iterable[Sequence[Any]] | Mapping[str, Any]) -> Iterable[Any]:
    if not isinstance(history, Mapping):
        if isinstance(history, str) or not isinstance(history, Iterable):
            raise ValueError(f"expected history to be a list of entries or a state_dict, got history={history!r}")
        return history
    if "history" not in history:
        raise ValueError(f"expected a state_dict with the key 'history', got the keys {sorted(map(str, history))}")
    accountant = history.get("mechanism")
    if not callable(accountant) and accountant is not None:  # Opacus stores the method, not the name that it returns
        _validate.one_of("mechanism", accountant, _OPACUS_ACCOUNTANTS)
    return _entries(history["history"])


def _from_entry(place: int, entry: Any) -> Release:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 3:
        raise ValueError(f"expected history[{place}] to be (noise_multiplier, sample_rate, steps), got {entry!r}")
    noise, rate, steps = entry
    try:
        _validate.unit_interval("sample_rate", rate)
        return Release(Gaussian(noise), steps=steps, sampling_rate=rate)
    except ValueError as error:
        raise ValueError(f"history[{place}]: {error}") from error
