"""UpdateFeatures: which change of a level is refused, and how (KIP-584, KIP-1022)."""

from __future__ import annotations

from tests.conformance.cases import table

#: ``kind`` is the type of the update: 1 an upgrade, 2 a safe downgrade, 3 an unsafe one.
CASES = table(
    """
    584/above: update <tv> level=3 kind=1 -> <refused> 3 <of tv> <local> only supports versions 0-2
    584/above-downwards: update <tv> level=3 kind=2 -> <refused> 3 <of tv> <local> only supports versions 0-2
    584/negative: update <tv> level=-1 kind=2 -> <refused> -1 <of tv> A feature version cannot be less than 0.
    584/no-type: update <tv> level=2 kind=0 -> <refused> 2 <of tv> <no type>
    584/no-such-type: update <tv> level=2 kind=4 -> <refused> 2 <of tv> <no type>
    584/no-such-feature:
        update feature=nosuch level=1 kind=1 -> <refused> 1 for feature nosuch. <local> does not support this feature.
    584/no-such-feature-to-remove:
        update feature=nosuch level=0 kind=2 -> <refused> 0 for feature nosuch. Feature nosuch not found.
    584/metadata-below:
        update <mv> level=1 kind=2 -> <refused> 1 for feature metadata.version. <local> only supports versions 7-33
    584/metadata-down: update <mv> level=32 kind=1 -> <refused> 32 for feature metadata.version. <down>
    584/down-as-upgrade tv=12: update <tv> level=0 kind=1 -> <refused> 0 <of tv> <down>
    584/down-as-upgrade-v0 tv=12: update <tv> level=0 kind=2 v0 -> <refused> 0 <of tv> <down>
    584/down tv=12:
        update <tv> level=0 kind={2|3} -> OK
    584/up: update <tv> level=2 kind=1 -> OK
    584/up-as-downgrade tv=01: update <tv> level=2 kind=2 -> <refused> 2 <of tv> Can't downgrade to a newer version.
    584/same-as-downgrade tv=2:
        update <tv> level=2 kind={2|3} -> OK
    584/nothing: update -> OK
    584/results: update <tv> level=2 kind=1 v1 -> OK; transaction.version OK NONE
    584/results-v0 tv=2: update <tv> level=2 kind=1 v0 -> OK; transaction.version OK NONE
    """,
    **{
        "of tv": "for feature transaction.version.",
        "no type": "The controller does not support the given upgrade type.",
    },
    tv="feature=transaction.version",
    mv="feature=metadata.version",
    refused="INVALID_UPDATE_VERSION; The update failed for all features since the following feature had an error: "
    "Invalid update version",
    local="Local controller 1",
    down="Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
    "downgrade.",
)
