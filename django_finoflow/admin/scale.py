"""Where moments lie on a line of 0 to 100, so that a step of a millisecond can be seen beside a wait of ninety days.

The line is true to time as long as its bars can be seen. Where long stretches would squeeze all else to nothing, each
piece between two moments gets a width by the logarithm of its length instead, and the long ones are marked as such.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from math import log1p
from statistics import median
from typing import NamedTuple

#: A line is bent where its bars would fill less than this part of it.
SPARSE = 0.1
#: A piece of a bent line is a stretch when it is that part of all the time, so many bars long, and so wide.
LONG, MANY, WIDE = 0.005, 50, 6.0
#: The least distance between two labels below the line.
APART = 20.0


class Stretch(NamedTuple):
    """A piece of the line that stands for far more time than its width."""

    begin: float
    width: float
    seconds: float

    @property
    def middle(self) -> float:
        return self.begin + self.width / 2


class Scale:
    """A line for some bars.

    Args:
        moments: where they begin and end, and whatever else has to have its place.
        lengths: how long they are, in seconds.
    """

    def __init__(self, moments: Iterable[datetime], lengths: Sequence[float]):
        self._moments = sorted(set(moments))
        self.begin, self.end = self._moments[0], self._moments[-1]
        self._usual = median(lengths) if lengths else 0.0
        pieces = [(after - before).total_seconds() for before, after in pairwise(self._moments)]
        self.is_bent = self._usual * len(lengths) < SPARSE * sum(pieces)
        short = max(self._usual / 10, 1e-6)
        widths = [log1p(piece / short) if self.is_bent else piece for piece in pieces]
        whole = sum(widths) or 1.0
        self._places = [0.0, *accumulate(100 * width / whole for width in widths)]
        self._pieces = pieces

    @property
    def seconds(self) -> float:
        """How much time the whole line stands for."""
        return sum(self._pieces)

    def at(self, moment: datetime) -> float:
        """Return the place of a moment; what lies outside the line is put at its end."""
        after = bisect_right(self._moments, moment)
        if after == 0 or len(self._moments) < 2:
            return 0.0
        if after == len(self._moments):
            return 100.0
        before = after - 1
        part = (moment - self._moments[before]).total_seconds() / self._pieces[before]
        return self._places[before] + part * (self._places[after] - self._places[before])

    def stretches(self) -> list[Stretch]:
        """Return the pieces that a reader must be told of: long, and drawn much too short."""
        if not self.is_bent:
            return []
        found = zip(pairwise(self._places), self._pieces, strict=True)
        stretches = [Stretch(begin, end - begin, piece) for (begin, end), piece in found]
        least = max(LONG * self.seconds, MANY * self._usual)
        return [s for s in stretches if s.seconds > least and s.width >= WIDE]

    def labelled(self, first: Iterable[datetime]) -> list[tuple[float, datetime]]:
        """Return where to write which moments: both ends, those of ``first``, then others, as far as there is room."""
        edges = [moment for moment, place in zip(self._moments, self._places, strict=True) if place in self._edges()]
        chosen: list[tuple[float, datetime]] = []
        for moment in [*self._moments[:1], *self._moments[-1:], *first, *edges]:
            if all(abs(self.at(moment) - place) >= APART for place, _moment in chosen):
                chosen.append((self.at(moment), moment))
        return sorted(chosen)

    def _edges(self) -> set[float]:
        return {edge for s in self.stretches() for edge in (s.begin, s.begin + s.width)}
