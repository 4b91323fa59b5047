"""Features of the cluster: which levels the server has, and which change of a level is refused (KIP-584, KIP-1022).

Only ``transaction.version`` (KIP-890) can be changed here. The texts are those of Kafka's ``FeatureControlManager``,
whose one answer stands for all features of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from spark_2pc_sink.ids import EPOCH_BUMP_VERSION

TRANSACTION_VERSION: Final = "transaction.version"
METADATA_VERSION: Final = "metadata.version"
#: ``metadata.version`` of Kafka 4.4.0.
_METADATA_LEVEL: Final = 33


class Feature(NamedTuple):
    """A feature with the levels that the server has."""

    name: str
    level_min: int
    level_max: int


#: As Kafka 4.4.0 answers, without the features of APIs that the server does not have.
SUPPORTED: Final = (
    Feature("kraft.version", 0, 1),
    Feature(METADATA_VERSION, 7, _METADATA_LEVEL),
    Feature(TRANSACTION_VERSION, 0, 2),
)


class UpgradeType(IntEnum):
    """What an update is allowed to be (Kafka: ``FeatureUpdate.UpgradeType``)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Update(NamedTuple):
    """One feature of a request. An upgrade type that is none of `UpgradeType` is refused."""

    name: str
    level: int
    upgrade_type: int


def finalized_levels(transaction_version: int) -> dict[str, int]:
    """The finalized level of every feature."""
    return {"kraft.version": 0, METADATA_VERSION: _METADATA_LEVEL, TRANSACTION_VERSION: transaction_version}


def updates_fault(
    updates: Iterable[Update], finalized: Mapping[str, int], *, node_id: int, keeps_prepared: bool
) -> str | None:
    """What is wrong with a request, which is carried out as a whole or not at all; None when nothing is.

    Args:
        updates: of the request.
        finalized: the levels as they are.
        node_id: of the node, which is its own controller.
        keeps_prepared: whether ``transaction.keep.prepared.enable`` is set.
    """
    for update in updates:
        fault = _support_fault(update, f"Local controller {node_id}") or _direction_fault(
            update, finalized[update.name]
        )
        if fault is None and keeps_prepared:
            fault = _keeping_fault(update)
        if fault is not None:
            return (
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.level} for feature {update.name}. {fault}"
            )
    return None


def _support_fault(update: Update, controller: str) -> str | None:
    """Whether there is such a level at all."""
    if update.upgrade_type not in UpgradeType.__members__.values():
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    known = next((feature for feature in SUPPORTED if feature.name == update.name), None)
    if known is None:
        missing = f"{controller} does not support this feature."
        return missing if update.level else f"Feature {update.name} not found."
    if known.level_min <= update.level <= known.level_max:
        return None
    return f"{controller} only supports versions {known.level_min}-{known.level_max}"


def _direction_fault(update: Update, now: int) -> str | None:
    """Whether the level may go from where it is to where it shall be."""
    if update.level < now and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > now and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    if update.level != now and update.name != TRANSACTION_VERSION:
        return f"The reference coordinator has it at {now} only."
    return None


def _keeping_fault(update: Update) -> str | None:
    """A setting must not lose its effect while the node runs, as it is refused where it has none at a start."""
    if update.name != TRANSACTION_VERSION or update.level >= EPOCH_BUMP_VERSION:
        return None
    return (
        f"transaction.keep.prepared.enable needs level {EPOCH_BUMP_VERSION}: "
        "restart the node without that setting first."
    )
