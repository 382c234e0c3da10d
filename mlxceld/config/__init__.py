"""The one table of settings, where its values come from, and the places of the platform.

Light to import: ``mlxctl`` does so at every call.
"""

from mlxceld.config.resolve import (
    ConfigFileError,
    EffectiveRow,
    ResolvedSettings,
    Source,
    effective,
    resolve,
    value_of,
)
from mlxceld.config.table import SETTINGS, Setting, Settings

__all__ = [
    "SETTINGS",
    "ConfigFileError",
    "EffectiveRow",
    "ResolvedSettings",
    "Setting",
    "Settings",
    "Source",
    "effective",
    "resolve",
    "value_of",
]
