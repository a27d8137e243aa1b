"""Actions of programs on a phone that the lab must know: the screen, the radios, and what root wrote below /sys.

`Watcher` reports files that are written (inotify(7)): one descriptor for a whole lab, no cost while nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from functools import partial
from typing import TYPE_CHECKING

from farm.common.errors import HostError
from farm.simulation.clocks import clock_files, is_settable
from farm.simulation.phone_processes import RUN
from farm.simulation.profiles import load_profile
from farm.simulation.sensors import CHARGING_ENABLED, INPUT_SUSPEND
from farm.simulation.state import PhoneState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from farm.simulation.lab_phone import LabPhone

AWAKE = "Awake"
_SWITCHES = {CHARGING_ENABLED: "charging_enabled", INPUT_SUSPEND: "input_suspended"}
_CLOSE_WRITE = 0x8
_MOVED_TO = 0x80
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class PhoneUserland:
    """Of one phone. Radios stay as they were over a reboot; the screen does not."""

    def __init__(self, phone: LabPhone, watcher: Watcher) -> None:
        self.over_network = False  # adb reaches the phone through its radio
        self.screen_on = True
        self._phone = phone
        self._watcher = watcher
        self._watches: list[int] = []
        self._radios = {"airplane": "0", "wifi": "1"}
        self._shown: dict[str, str] = {}  # what the files said last that root may write
        self._hearing = ""  # path of the one that is being heard

    @property
    def cut_off(self) -> bool:
        """Whether the phone cut the link that it is reached by."""
        return self.over_network and (self._radios["airplane"] == "1" or self._radios["wifi"] == "0")

    def prepare(self) -> None:
        """Before each boot."""
        folder = self._phone.spec.directory / RUN
        folder.mkdir(parents=True, exist_ok=True)
        self.screen_on = True
        self._shown.clear()
        for name, value in {**self._radios, "screen": AWAKE, "doze": "false"}.items():
            (folder / name).write_text(f"{value}\n", "utf-8")
            (folder / name).chmod(0o644)
        if not self._watches:
            self._watch()

    def close(self) -> None:
        """The phone goes away."""
        for number in self._watches:
            self._watcher.unwatch(number)
        self._watches.clear()

    def set_radio(self, name: str, value: str) -> None:
        """Switch `airplane` or `wifi` by hand."""
        (self._phone.spec.directory / RUN / name).write_text(f"{value}\n", "utf-8")
        self._on_file_written(name)

    def is_unheard(self, name: str, text: str) -> bool:
        """Whether root wrote a file below the phone's directory and we have not heard: it is left until we have."""
        path = f"/{name}"
        return path in self._shown and path != self._hearing and text != self._shown[path]

    def shown(self, state: PhoneState, left: Collection[str]) -> None:
        """All files say this state now, but those that were left."""
        if not self._phone.spec.rooted:
            return
        files = clock_files(load_profile(self._phone.spec.profile).sysfs, state)
        contents = {path: text for path, text in files if is_settable(path) and path[1:] not in self._phone.captured}
        self._shown = {path: self._shown[path] if path[1:] in left else text for path, text in contents.items()}

    def _text(self, path: str) -> str:
        try:
            return (self._phone.spec.directory / path.removeprefix("/")).read_text("utf-8", "replace").strip()
        except OSError:
            return ""

    def _watch(self) -> None:
        directory = self._phone.spec.directory
        self._watches.append(self._watcher.watch(directory / RUN, self._on_file_written, moved=True))
        if not self._phone.spec.rooted:
            return
        sysfs = load_profile(self._phone.spec.profile).sysfs
        settable = {path for path, _ in clock_files(sysfs, PhoneState()) if is_settable(path)}
        for folder in sorted({path.rpartition("/")[0] for path in (*settable, *_SWITCHES)}):
            place = directory / folder.removeprefix("/")
            place.mkdir(parents=True, exist_ok=True)
            self._watches.append(self._watcher.watch(place, partial(self._on_set, folder)))

    def _on_file_written(self, name: str) -> None:
        word = self._text(f"{RUN}/{name}")
        if name == "screen":
            self.screen_on = word == AWAKE
        elif name in self._radios and word in {"0", "1"}:
            self._radios[name] = word
            if self.cut_off:
                self._phone.spawn(self._phone.drop_links())
        self._phone.notify()

    def _on_set(self, folder: str, name: str) -> None:
        """Root wrote a file below /sys: the kernel takes it, or the file has its former text again."""
        path = f"{folder}/{name}"
        text = self._text(path)
        self._hearing = path
        changes: dict[str, object] = {}
        if path in _SWITCHES and text in {"0", "1"}:
            changes[_SWITCHES[path]] = text == "1"
        elif is_settable(path) and (text.isdecimal() or (path.endswith("governor") and text.isascii() and text)):
            changes["knobs"] = {**self._phone.state().knobs, path: text}
        self._phone.set_state(**changes)
        self._phone.refresh()  # when nothing changed, too
        self._hearing = ""


class Watcher:
    """Watches folders; needs a running event loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise HostError("the host has no inotify left", evidence=os.strerror(ctypes.get_errno()))
        self._watched: dict[int, Callable[[str], None]] = {}
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_event)

    def watch(self, folder: Path, written: Callable[[str], None], *, moved: bool = False) -> int:
        """Call `written(name)` when a file of the folder was written, or `moved` there; returns an id for `unwatch`."""
        mask = _CLOSE_WRITE | (_MOVED_TO if moved else 0)
        number: int = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if number < 0:
            raise HostError(f"cannot watch {folder}", evidence=os.strerror(ctypes.get_errno()))
        self._watched[number] = written
        return number

    def unwatch(self, number: int) -> None:
        """Stop watching a folder."""
        if self._watched.pop(number, None) is not None:
            self._libc.inotify_rm_watch(self._descriptor, number)

    def close(self) -> None:
        """Stop watching everything."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _on_event(self) -> None:
        data = os.read(self._descriptor, _READ_BYTES)
        offset = 0
        while offset < len(data):
            number, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            written = self._watched.get(number)
            if written is not None and name and not name.startswith(b"."):
                written(os.fsdecode(name))
