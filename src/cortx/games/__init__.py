"""A model and a reference become a game v(S)."""

from cortx.games.game import Game, Rows

__all__ = ["Game", "Rows"]
