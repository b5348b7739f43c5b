"""A model and a reference become a game v(S)."""

from cortx.games.game import Game, GameSpec, Rows

__all__ = ["Game", "GameSpec", "Rows"]
