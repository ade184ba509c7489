"""Characteristic functions of the privacy loss: an independent second opinion, its error estimated."""

from .accountant import CharacteristicFunction, Direction

__all__ = ["CharacteristicFunction", "Direction"]
