"""Settings whose names point at nothing, on this host or in this farm: `farm status` and `farm doctor` tell of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator

from farm.config import FarmConfig
from farm.core.adoption import rules_of
from farm.core.selector import did_you_mean


def dangling(config: FarmConfig, keys: Collection[str], words: Collection[str] = ()) -> Iterator[str]:
    """One line for each. Looks at files.

    Args:
        config: the configuration.
        keys: every TVM key that somebody can ask for now; none while no phone has come yet.
        words: every word that a phone answers to, adopted or not; none while no phone has come yet.
    """
    program = config.power.uhubctl
    if program and shutil.which(program) is None:
        yield f"[power] uhubctl: there is no program {program}: no power is cut by it"
    if config.usb.sysfs != "/sys" and not os.path.isdir(f"{config.usb.sysfs}/bus"):  # noqa: PTH112 - also where nobody may look
        yield f"[usb] sysfs: {config.usb.sysfs} is no sysfs: nobody knows where phones are plugged in"
    for rule in rules_of(config.adopt):
        for word in rule.selector.aliases:
            if words and word not in words:
                hint = did_you_mean(word, words, "")
                said = f"no phone that has come answers to {word}" + (f" ({hint})" if hint else "")
                yield f'[[adopt]] match = "{rule.selector}": {said}'
    for key in config.gates.tvm_class:
        if keys and key not in keys:
            yield f"[gates.tvm_class] {key}: no phone and no alias has that key: nothing is asked for by it"
