"""UpdateFeatures: which change of a level is refused, and how (KIP-584, KIP-1022)."""

from __future__ import annotations

from typing import Final

from spark_2pc_sink.codes import Code
from tests.conformance.cases import Case, case
from tests.conformance.operations import UpdateFeatures

TV: Final = "transaction.version"
UNKNOWN, UPGRADE, SAFE, UNSAFE = 0, 1, 2, 3
_FAILED: Final = "The update failed for all features since the following feature had an error: Invalid update version"
_DOWN: Final = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
_GRANTED: Final[tuple[int, None, list[object]]] = (0, None, [])


def update(*updates: tuple[str, int, int], version: int = 2) -> UpdateFeatures:
    """A check of these updates."""
    return UpdateFeatures(updates=updates, version=version)


def _refused(name: str, level: int, text: str) -> tuple[int, str, list[object]]:
    return Code.INVALID_UPDATE_VERSION, f"{_FAILED} {level} for feature {name}. {text}", []


def _faults() -> list[Case]:
    local = "Local controller 1"
    rows = [
        ("above", TV, 3, UPGRADE, f"{local} only supports versions 0-2"),
        ("above-downwards", TV, 3, SAFE, f"{local} only supports versions 0-2"),
        ("negative", TV, -1, SAFE, "A feature version cannot be less than 0."),
        ("no-type", TV, 2, UNKNOWN, "The controller does not support the given upgrade type."),
        ("no-such-type", TV, 2, 4, "The controller does not support the given upgrade type."),
        ("no-such-feature", "nosuch", 1, UPGRADE, f"{local} does not support this feature."),
        ("no-such-feature-to-remove", "nosuch", 0, SAFE, "Feature nosuch not found."),
        ("metadata-below", "metadata.version", 1, SAFE, f"{local} only supports versions 7-33"),
        ("metadata-down", "metadata.version", 32, UPGRADE, _DOWN),
    ]
    return [
        case(f"584/{word}", (update((name, level, kind)), _refused(name, level, text)))
        for word, name, level, kind, text in rows
    ]


def _directions() -> list[Case]:
    down = _refused(TV, 0, _DOWN)
    up = _refused(TV, 2, "Can't downgrade to a newer version.")
    return [
        case("584/down-as-upgrade", (update((TV, 0, UPGRADE)), down), levels=(1, 2)),
        case("584/down-as-upgrade-v0", (update((TV, 0, SAFE), version=0), down), levels=(1, 2)),
        case("584/down", (update((TV, 0, SAFE)), _GRANTED), (update((TV, 0, UNSAFE)), _GRANTED), levels=(1, 2)),
        case("584/up", (update((TV, 2, UPGRADE)), _GRANTED)),
        case("584/up-as-downgrade", (update((TV, 2, SAFE)), up), levels=(0, 1)),
        case(
            "584/same-as-downgrade", (update((TV, 2, SAFE)), _GRANTED), (update((TV, 2, UNSAFE)), _GRANTED), levels=(2,)
        ),
        case("584/nothing", (update(), _GRANTED)),
        case("584/results", (update((TV, 2, UPGRADE), version=1), (0, None, [(TV, 0, "NONE")]))),
        case("584/results-v0", (update((TV, 2, UPGRADE), version=0), (0, None, [(TV, 0, "NONE")])), levels=(2,)),
    ]


CASES: Final = (*_faults(), *_directions())
