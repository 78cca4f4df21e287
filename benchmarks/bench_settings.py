"""The settings that benchmarks plan: profiles and batches in a folder.

The folder holds ``settings.json`` (a list of ``{"profile": FILE, "batch": FILE}``), ``profiles/`` and ``batches/``
(JSON with a key ``lengths``).
"""

import json
from pathlib import Path
from typing import NamedTuple

from infinipipe_contract.codec import profile_from_json
from infinipipe_contract.profile import Profile

SETTINGS_HELP = "folder with settings.json, profiles/ and batches/"


class Setting(NamedTuple):
    """A batch to plan: its cost model, the tokens of its sequences, and its name."""

    profile: Profile
    lengths: list[int]
    batch_name: str


def read_settings(folder: Path) -> list[Setting]:
    """Read all settings of a folder, in its order."""
    return [
        Setting(
            profile_from_json((folder / "profiles" / entry["profile"]).read_text()),
            json.loads((folder / "batches" / entry["batch"]).read_text())["lengths"],
            Path(entry["batch"]).stem,
        )
        for entry in json.loads((folder / "settings.json").read_text())
    ]
