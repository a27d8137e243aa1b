"""What programs on a phone did that the lab must know: the screen, the radios, and what root wrote below /sys."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from farm.simulation.battery import CHARGING_ENABLED, INPUT_SUSPEND
from farm.simulation.clocks import clock_files, is_settable
from farm.simulation.phone_plan import RUN
from farm.simulation.profiles import load_profile
from farm.simulation.state import PhoneState

if TYPE_CHECKING:
    from collections.abc import Collection

    from farm.simulation.inotify import Watcher
    from farm.simulation.lab_phone import LabPhone

AWAKE = "Awake"
_SWITCHES = {CHARGING_ENABLED: "charging_enabled", INPUT_SUSPEND: "input_suspended"}


class Userland:
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
        self._on_said(name)

    def is_unheard(self, name: str, text: str) -> bool:
        """Whether root wrote a file below the phone's directory and we have not heard: it is left until we have."""
        path = f"/{name}"
        return path in self._shown and path != self._hearing and text != self._shown[path]

    def shown(self, state: PhoneState, left: Collection[str]) -> None:
        """All files say this state now, but those that were left."""
        if not self._phone.spec.rooted:
            return
        files = clock_files(load_profile(self._phone.spec.profile).sysfs, state)
        said = {path: text for path, text in files if is_settable(path) and path[1:] not in self._phone.captured}
        self._shown = {path: self._shown[path] if path[1:] in left else text for path, text in said.items()}

    def _text(self, path: str) -> str:
        try:
            return (self._phone.spec.directory / path.removeprefix("/")).read_text("utf-8", "replace").strip()
        except OSError:
            return ""

    def _watch(self) -> None:
        directory = self._phone.spec.directory
        self._watches.append(self._watcher.watch(directory / RUN, self._on_said, moved=True))
        if not self._phone.spec.rooted:
            return
        sysfs = load_profile(self._phone.spec.profile).sysfs
        settable = {path for path, _ in clock_files(sysfs, PhoneState()) if is_settable(path)}
        for folder in sorted({path.rpartition("/")[0] for path in (*settable, *_SWITCHES)}):
            place = directory / folder.removeprefix("/")
            place.mkdir(parents=True, exist_ok=True)
            self._watches.append(self._watcher.watch(place, partial(self._on_set, folder)))

    def _on_said(self, name: str) -> None:
        word = self._text(f"{RUN}/{name}")
        if name == "screen":
            self.screen_on = word == AWAKE
        elif name in self._radios and word in {"0", "1"}:
            self._radios[name] = word
            if self.cut_off:
                self._phone.spawn(self._phone.drop_links())
        self._phone.notify()

    def _on_set(self, folder: str, name: str) -> None:
        """Root wrote a file below /sys: the kernel takes it, or the file says again what it said."""
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
