"""A game without its model as JSON and arrays: what a saved explainer and a folder of labels keep of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.explainer.reading import check_players
from cortx.games import GameSpec
from cortx.games.players import ImagePlayers, Players
from cortx.images import ImageSchema
from cortx.schema_json import schema_from_json, schema_to_json
from cortx.tables import Schema

GAME_ARRAYS = ("game.absent", "game.base_values", "game.column_player")


def game_facts(spec: GameSpec) -> dict[str, Any]:
    """What people want to read of a game."""
    return {
        "table": spec.schema.to_json() if isinstance(spec.schema, ImageSchema) else schema_to_json(spec.schema),
        "players": list(spec.players.names),
        "explains": {
            "output": spec.output,
            "target": spec.target,
            "output_names": None if spec.output_names is None else list(spec.output_names),
            "base_values": spec.base_values.tolist(),
            "model_frame": spec.frame,
            **_image_facts(spec),
        },
    }


def _image_facts(spec: GameSpec) -> dict[str, Any]:
    """What an image game has besides."""
    if not isinstance(spec.players, ImagePlayers):
        return {}
    grid = None if spec.players.grid is None else list(spec.players.grid)
    return {"patch_grid": grid, "own_reference": spec.own_reference, "precision": spec.precision}


def game_arrays(spec: GameSpec) -> dict[str, npt.NDArray[Any]]:
    """Its numbers, under the names `GAME_ARRAYS`."""
    arrays = (spec.absent, spec.base_values, spec.players.column_player)
    return {name: np.ascontiguousarray(array) for name, array in zip(GAME_ARRAYS, arrays, strict=True)}


def game_spec(facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> GameSpec:
    """The opposite of `game_facts` and `game_arrays`."""
    absent, base_values, column_player = (arrays[name] for name in GAME_ARRAYS)
    explains = facts["explains"]
    names = explains["output_names"]
    schema: Schema | ImageSchema
    players: Players
    if "image" in facts["table"]:
        schema = ImageSchema.from_json(facts["table"])
        grid = explains["patch_grid"]
        pixel_player = schema.to_pixels(column_player)
        if grid is not None and grid[0] * grid[1] != len(facts["players"]):
            raise ValueError(f"there are {len(facts['players'])} players, but the grid of patches is {grid}")
        players = ImagePlayers.of(tuple(facts["players"]), pixel_player, schema, None if grid is None else tuple(grid))
    else:
        schema = schema_from_json(facts["table"])
        players = Players(tuple(facts["players"]), column_player)
    check_players(column_player, len(players), schema)
    return GameSpec(
        schema=schema,
        absent=absent,
        players=players,
        output=explains["output"],
        target=explains["target"],
        frame=explains["model_frame"],
        base_values=base_values,
        output_names=None if names is None else tuple(names),
        own_reference=explains.get("own_reference"),
        precision=explains.get("precision"),
    )
