"""`Ledger`: a limit on model evaluations that is checked before the model is asked, not afterwards."""

from __future__ import annotations

from threading import get_ident

from cortx.errors import BudgetError


class Ledger:
    """Counts model evaluations and refuses the call that would pass the limit.

    `limit` is in model evaluations; None only counts. `spent` grows with every call of the model, and with what was
    paid for earlier and is used again (`add`). `planned` and `advice` go into the error's words.
    """

    def __init__(self, limit: int | None, advice: str = "") -> None:
        self.limit, self.advice = limit, advice
        self.spent = 0
        self.planned: int | None = None
        self.thread = get_ident()
        """Only calls from the thread that opened it count: others that share the game have their own."""

    def add(self, evaluations: int) -> None:
        """Counts evaluations that are about to be spent, or were spent earlier; raises `BudgetError` past the limit."""
        self.check(evaluations)
        self.spent += evaluations

    def check(self, evaluations: int) -> None:
        """Raises `BudgetError` if so many more would pass the limit; counts nothing."""
        if self.limit is not None and self.spent + evaluations > self.limit:
            planned = "" if self.planned is None else f" ({self.planned:,} were planned)"
            raise BudgetError(
                f"{self.spent:,} of {self.limit:,} model evaluations are spent{planned}, and the next call asks for "
                f"{evaluations:,}; the model was not asked{self.advice}"
            )
