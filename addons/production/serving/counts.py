"""Counts of what was not captured: kept in memory, where counting neither waits nor fails, and written by a thread.

A disk that is full, slow or gone delays what the thread writes, and nothing else: it tries again until there is room. Names
of counts are words of this project, never a client's.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter

from addons.production.traces.store import Store

PAUSE, RETRY = 1.0, 5.0  # seconds between two writes, and until the next where one failed
LATE = "late: the answer went out before its record was on the disk"


class Counts:
    """Counts by reason, since the server started; the store's counts.json adds up those of all its servers."""

    def __init__(self, store: Store) -> None:
        self.store, self.lock, self.changed = store, threading.Lock(), threading.Event()
        self.total, self.new, self.said = Counter[str](), Counter[str](), dict[str, int]()
        self.is_over = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def add(self, why: str) -> None:
        with self.lock:
            self.total[why] += 1
            self.new[why] += 1
        self.changed.set()

    def all(self) -> dict[str, int]:
        with self.lock:
            return dict(sorted(self.total.items()))

    def write(self) -> bool:
        """Add what is new to the store's counts, and say the first of each reason, then each tenfold. False where the disk
        took only a part."""
        with self.lock:
            new, self.new, total = self.new, Counter[str](), dict(self.total)
        try:
            if new:
                self.store.add(new)
                new = Counter()
            for why, count in total.items():
                if is_due(count, self.said.get(why, 0)):
                    text = f"{sentence(why, count)} (all counts: {self.store.folder / 'counts.json'})"
                    print(text, file=sys.stderr, flush=True)
                    self.said[why] = count
        except Exception:  # a full disk, a log that was closed: whatever it is, it is tried again
            with self.lock:
                self.new.update(new)
            return False
        return True

    def close(self) -> None:
        """Write what is left, if it can be."""
        self.is_over.set()
        self.changed.set()
        self.write()

    def _work(self) -> None:
        while self.changed.wait() and not self.is_over.is_set():
            self.changed.clear()
            is_written = self.write()
            if not is_written:
                self.changed.set()
            self.is_over.wait(PAUSE if is_written else RETRY)


def sentence(why: str, count: int) -> str:
    """A count in words."""
    return f"capture: {count} {'' if why == LATE else 'not stored: '}{why}"


def is_due(count: int, latest: int) -> bool:
    """Whether a count is said again after the `latest` that was: at first, and then each tenfold."""
    return len(str(count)) > (len(str(latest)) if latest else 0)


def cause(text: str) -> str:
    """The part of a sentence that quotes nothing of the conversation that it is about."""
    return re.split(r"['\"(:]| with the fields", text)[0].strip()[:80]
