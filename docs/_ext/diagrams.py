"""State machines as SVG, drawn from the code's own tables: `python docs/_ext/diagrams.py` writes docs/diagrams/.

A drawing says where each state stands; the steps come from the code. Steps that all states of a group have in common
are drawn once, from or to the group's frame; a step and its way back are one line with two heads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from farm.devices.lifecycle.recovery import ACTION_RULES  # noqa: E402
from farm.devices.lifecycle.state import LINK_DOWN, TRANSITIONS  # noqa: E402
from farm.head.queue.model import PHASES  # noqa: E402
from farm.head.queue.model import TRANSITIONS as JOB_TRANSITIONS  # noqa: E402
from farm.model.device import Heat, Service  # noqa: E402
from farm.model.job import FINAL, JobState  # noqa: E402

Point = tuple[float, float]
Step = tuple[str, str]
HIGH, PAD, FRAME = 34.0, 14.0, 12.0
# The paper has a colour of its own, so that lines can be seen whatever the page's colour is.
STYLE = (
    "svg{background:#fff;color:#1b1f24}rect.paper{fill:#fff}.box{fill:#eef3f8;stroke:#4b6584}"
    ".group{fill:none;stroke:#8c98a4;stroke-dasharray:4 4}.line{fill:none;stroke:#4b6584;stroke-width:1.4}"
    "text{font:14px system-ui,sans-serif;fill:#1b1f24}.small{font-size:12px;fill:#4f5965}.head{fill:#4b6584}"
    "@media (prefers-color-scheme:dark){rect.paper{fill:#16191d}.box{fill:#253240;stroke:#8fb3d9}"
    ".group{stroke:#79838d}.line{stroke:#8fb3d9}.head{fill:#8fb3d9}text{fill:#e8ebee}.small{fill:#b3bcc5}}"
)

HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>'
)


@dataclass(frozen=True)
class Drawing:
    """One state machine on paper."""

    title: str
    size: Point
    places: Mapping[str, Point]  # the middle of each state's box
    steps: frozenset[Step]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)  # a line below a state's name
    bend: Mapping[Step, float] = field(default_factory=dict)  # how far a line leaves the straight way, to its left

    def arrows(self) -> list[Step]:
        """What is drawn, from and to states or groups."""
        whole = {name: (name,) for name in self.places}
        left, drawn = set(self.steps), []
        for sources, targets in (
            (self.groups, self.groups),
            (self.groups, whole),
            (whole, self.groups),
            (whole, whole),
        ):
            for source, froms in sources.items():
                for target, tos in targets.items():
                    meant = {(a, b) for a in froms for b in tos if a != b}
                    if set(froms) & set(tos) or not meant <= self.steps or not meant & left:
                        continue
                    left -= meant
                    drawn.append((source, target))
        return drawn

    def drawn(self) -> frozenset[Step]:
        """The steps that the arrows mean."""
        meant = {(a, b) for s, t in self.arrows() for a in self.groups.get(s, (s,)) for b in self.groups.get(t, (t,))}
        return frozenset(meant)

    def svg(self) -> str:
        """The drawing."""
        wide, high = self.size
        arrows = self.arrows()
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" role="img">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>",
            HEAD,
            f'<rect class="paper" width="{wide:g}" height="{high:g}" rx="8"/>',
        ]
        for name in self.groups:
            x, y, w, h = self._box(name)
            lines.append(f'<rect class="group" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="10"/>')
            lines.append(f'<text class="small" x="{x + 8:g}" y="{y - 5:g}">{escape(name)}</text>')
        for source, target in arrows:
            back = (target, source) in arrows
            if back and arrows.index((target, source)) < arrows.index((source, target)):
                continue
            start = ' marker-start="url(#head)"' if back else ""
            lines.append(f'<path class="line" d="{self._way(source, target)}" marker-end="url(#head)"{start}/>')
        for name, (x, y) in self.places.items():
            left, top, w, h = self._box(name)
            lines.append(f'<rect class="box" x="{left:g}" y="{top:g}" width="{w:g}" height="{h:g}" rx="6"/>')
            note = self.notes.get(name, "")
            up = 3.0 if note else -5.0
            lines.append(f'<text x="{x:g}" y="{y - up:g}" text-anchor="middle">{escape(name)}</text>')
            if note:
                lines.append(f'<text class="small" x="{x:g}" y="{y + 14:g}" text-anchor="middle">{escape(note)}</text>')
        return "\n".join([*lines, "</svg>\n"])

    def _box(self, name: str) -> tuple[float, float, float, float]:
        """Left, top, width, height of a state or a group."""
        if name in self.groups:
            boxes = [self._box(each) for each in self.groups[name]]
            left, top = min(b[0] for b in boxes) - FRAME, min(b[1] for b in boxes) - FRAME
            right, bottom = max(b[0] + b[2] for b in boxes) + FRAME, max(b[1] + b[3] for b in boxes) + FRAME
            return left, top, right - left, bottom - top
        x, y = self.places[name]
        note = self.notes.get(name, "")
        wide = max(8.2 * len(name), 6.6 * len(note)) + 2 * PAD
        high = HIGH + 14 * bool(note)
        return x - wide / 2, y - high / 2, wide, high

    def _way(self, source: str, target: str) -> str:
        """From edge to edge, straight or bent."""
        one, other = self._box(source), self._box(target)
        a, b = _facing(one, other)
        bend = self.bend.get((source, target), 0.0)
        if not bend:
            start, end = _edge(one, a, b), _edge(other, b, a)
            return f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
        dx, dy = b[0] - a[0], b[1] - a[1]
        long = (dx * dx + dy * dy) ** 0.5
        control = ((a[0] + b[0]) / 2 + bend * dy / long, (a[1] + b[1]) / 2 - bend * dx / long)
        start, end = _edge(one, a, control), _edge(other, b, control)
        return f"M{start[0]:.1f} {start[1]:.1f}Q{control[0]:.1f} {control[1]:.1f} {end[0]:.1f} {end[1]:.1f}"


def _facing(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> tuple[Point, Point]:
    """A point within each box; where the boxes lie above each other, on one upright line."""
    low, high = max(one[0], other[0]), min(one[0] + one[2], other[0] + other[2])
    ya, yb = one[1] + one[3] / 2, other[1] + other[3] / 2
    if high - low > FRAME:
        return ((low + high) / 2, ya), ((low + high) / 2, yb)
    return (one[0] + one[2] / 2, ya), (other[0] + other[2] / 2, yb)


def _edge(box: tuple[float, float, float, float], inside: Point, towards: Point) -> Point:
    """Where the way from a point inside leaves the box."""
    dx, dy = towards[0] - inside[0], towards[1] - inside[1]
    shares = [1.0]
    if dx:
        shares.append(((box[0] + box[2] if dx > 0 else box[0]) - inside[0]) / dx)
    if dy:
        shares.append(((box[1] + box[3] if dy > 0 else box[1]) - inside[1]) / dy)
    share = min(each for each in shares if each >= 0)
    return inside[0] + dx * share, inside[1] + dy * share


def steps_of(table: Mapping[object, frozenset[object]]) -> frozenset[Step]:
    """A table of transitions as steps; staying is none."""
    return frozenset((str(a), str(b)) for a, after in table.items() for b in after if a is not b)


def life() -> Drawing:
    """A device's way."""
    way = ("identifying", "provisioning", "starting", "checking", "ready")
    xs = (105, 270, 425, 565, 695)
    return Drawing(
        "Life of a device", (900, 430),
        {
            **{name: (x, 190.0) for name, x in zip(way, xs, strict=True)},
            "gone": (150, 50), "offline": (330, 50), "unauthorized": (540, 50),
            "new": (150, 360), "recovering": (525, 360), "quarantined": (690, 360),
        },
        steps_of(TRANSITIONS),
        {
            "on its way to users": way, "no link": tuple(sorted(str(each) for each in LINK_DOWN)),
            "waiting": ("new", "recovering", "quarantined"),
        },
        bend={
            ("checking", "provisioning"): -70, ("provisioning", "checking"): 70, ("ready", "starting"): -110,
            ("starting", "ready"): 110, ("ready", "provisioning"): -150, ("waiting", "no link"): -640,
            ("gone", "unauthorized"): 50, ("unauthorized", "gone"): -50, ("quarantined", "new"): 60,
        },
    )  # fmt: skip


def recovery() -> Drawing:
    """Recovery actions: which one may come after which."""
    steps = set()
    for fault in {each for rule in ACTION_RULES for each in rule.helps}:
        chain = [rule.action.value for rule in ACTION_RULES if fault in rule.helps]
        steps |= set(pairwise(chain))
    places = {rule.action.value: (150.0, 45 + 72.0 * at) for at, rule in enumerate(ACTION_RULES)}
    down = {(a, b): places[b][1] - places[a][1] for a, b in steps}
    far = {step: 110 + 0.8 * way for step, way in down.items() if way > 72.0}
    limit = {
        rule.action.value: f"{rule.impact}" + (f", {rule.per_day} a day" if rule.per_day else "")
        for rule in ACTION_RULES
    }
    return Drawing("Recovery actions", (420, 525), places, frozenset(steps), notes=limit, bend=far)


def job() -> Drawing:
    """A job's states."""
    return Drawing(
        "States of a job", (720, 260),
        {
            "held": (90, 60), "blocked": (90, 190), "queued": (270, 125), "running": (430, 125),
            "done": (620, 45), "failed": (620, 125), "cancelled": (620, 205),
        },
        steps_of(JOB_TRANSITIONS),
        {"waits": ("held", "blocked", "queued"), "over": tuple(str(s) for s in JobState if s in FINAL)},
        bend={("waits", "failed"): 150, ("waits", "cancelled"): -100},
    )  # fmt: skip


def phase() -> Drawing:
    """What the queue does about a job."""
    return Drawing(
        "Phases of a job that has not ended", (720, 230),
        {
            "resting": (90, 60), "asked": (270, 60), "starting": (450, 60), "running": (620, 60),
            "stopping": (620, 170), "saving": (270, 170),
        },
        steps_of(PHASES),
        bend={("starting", "resting"): -62},
    )  # fmt: skip


def service_and_heat() -> Drawing:
    """The other two facts of a device's state: everything leads to everything."""
    service, heat = [str(each) for each in Service], [str(each) for each in Heat]
    steps = {(a, b) for names in (service, heat) for a in names for b in names if a != b}
    places = {"in": (130.0, 60.0), "draining": (70.0, 160.0), "maintenance": (225.0, 160.0)}
    places |= {"ok": (440.0, 60.0), "cooling": (440.0, 160.0)}
    groups = {"service: what operators say": tuple(service), "heat: what the thermal gate says": tuple(heat)}
    return Drawing("Service and heat", (640, 220), places, frozenset(steps), groups)


def lease() -> Drawing:
    """A lease: no table of the code has it, for its ends are many; farm/leasing does these steps."""
    steps = {
        ("waiting", "decided"),
        ("decided", "kept"),
        ("decided", "waiting"),
        ("kept", "delivered"),
        ("kept", "released"),
        ("delivered", "in session"),
        ("in session", "delivered"),
        ("delivered", "revoked"),
        ("in session", "revoked"),
        ("revoked", "released"),
        ("delivered", "released"),
        ("in session", "released"),
        ("waiting", "withdrawn"),
    }
    return Drawing(
        "Life of a lease", (900, 260),
        {
            "waiting": (70, 60), "decided": (230, 60), "kept": (420, 60), "delivered": (635, 60),
            "in session": (820, 60),
            "withdrawn": (70, 190), "released": (420, 190), "revoked": (720, 190),
        },
        frozenset(steps),
        notes={"decided": "by the allocator", "kept": "by the store, fenced", "delivered": "the holder is notified"},
    )  # fmt: skip


def parts() -> Drawing:
    """The way from a user to a phone; no table of the code has it."""
    phones = tuple(f"phone {each}" for each in (1, 2, 3))
    steps = {("stock TVM", "farm"), ("farm bench, Python", "farm"), ("farm", "adb server")}
    return Drawing(
        "From a user to a phone", (860, 240),
        {
            "stock TVM": (110, 65), "farm bench, Python": (110, 175), "farm": (360, 120), "adb server": (560, 120),
            **{name: (755, 50.0 + 70 * at) for at, name in enumerate(phones)},
        },
        frozenset(steps | {("adb server", phone) for phone in phones}),
        {"a Linux host": ("farm", "adb server"), "USB": phones},
        notes={
            "stock TVM": "one TCP port: 9190", "farm bench, Python": "a unix socket", "farm": "queue, health, verdicts",
            "adb server": "farm's own", **dict.fromkeys(phones, "adbd, tvm_rpc"),
        },
    )  # fmt: skip


DRAWINGS: Mapping[str, Callable[[], Drawing]] = {
    "life": life, "recovery": recovery, "job": job, "phase": phase, "service-heat": service_and_heat, "lease": lease,
    "parts": parts,
}  # fmt: skip


def written() -> Iterator[Path]:
    """Write every drawing; yields its file."""
    folder = ROOT / "docs" / "diagrams"
    folder.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        path = folder / f"{name}.svg"
        path.write_text(draw().svg(), "utf-8")
        yield path


if __name__ == "__main__":
    for path in written():
        sys.stdout.write(f"{path}\n")
