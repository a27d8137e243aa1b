"""Kinds of jobs. A kind is one folder, and one line in `KINDS`.

Another package names a kind only for what it does for that one alone: the results of `MEASURING_KINDS`
(farm/model/job.py) have a median at nominal speed; what other kinds measure is in histories, on the board and in CI by
the `values` of their certificates (farm/measure/metrics.py), whatever the kind. The zygote imports some workers before
it forks (`PRELOADED` in farm/worker/zygote.py), the others are imported later.

`farm/kinds/<kind>/` holds
    __init__.py  `<Kind>Spec`, THE declaration of its fields: bounds, units, help. The command's options, the client's
                 arguments, control messages, the stored row, the worker's task and the reference are made of it
    executor.py  what the daemon does with an attempt: `<Kind>Executor(parts)`
    worker.py    what runs in the worker: `main(payload, daemon)`; the only part that may import TVM
    command.py   its command, a function of the kind's name; `print_job` or
                 `print_results` for `farm job show`
    trace.py     `trace_of` and `span_of`: a result as a trace for Perfetto; without it `farm job output` makes none
    page.py      the plots on the web page of a job: `PAGE`, a `farm.web.plots.KindPage`; without one there are none
    page.html    what that page says of a result, blocks of farm/web/templates/job_result.html; without one the plain
                 values of the result are listed

What clients get of a job is `<Kind>Outcome` in `farm/kinds/outcomes.py`, else a plain `Outcome`.

A part is imported when it is first asked for: `farm status` pays for none of them. How a `farm bench` goes through
its forms: command line -> BenchSpec (client) -> JSON of `job.submit` -> BenchSpec (daemon; checked here) -> the stored
row -> ModelTask, the spec with what the daemon adds -> JSON of the worker's payload -> ModelTask (worker; checked
here) -> result, JSON that the worker writes, the store keeps and `job.show` gives -> BenchOutcome -> the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farm.client.model import Outcome
    from farm.jobs.executor import Executor
    from farm.kinds.execution import ExecutorParts
    from farm.model.specs import JobSpec


@dataclass(frozen=True, slots=True)
class JobKind:
    """One kind of job, by the package of its parts."""

    name: str
    about: str  # in `farm --help`: below 60 characters, so that a terminal of 80 columns shows it
    section: str = "Models"  # heading in `farm --help`
    package: str = ""  # "": farm.kinds.<name>
    where: str = ""  # of its command, module:name; "": in its command.py, the function of the kind's name
    checked: bool = False  # whether `farm ci` has a command of its name, by the `values` in its certificates

    @property
    def folder(self) -> str:
        """The package of its parts."""
        return self.package or f"farm.kinds.{self.name}"

    def home(self, part: str) -> str:
        """The full name of the module of one of its parts."""
        return f"{self.folder}.{part}"

    def part(self, name: str) -> Any:
        """The module of one of its parts.

        Raises:
            ModuleNotFoundError: it has none of that name.
        """
        return import_module(self.home(name))

    def has(self, name: str) -> bool:
        """Whether it has that part."""
        return find_spec(self.home(name)) is not None

    def text(self, name: str) -> str | None:
        """The text of a file in the kind's folder; None: there is no file of that name."""
        file = files(self.folder) / name
        return file.read_text("utf-8") if file.is_file() else None

    @property
    def command(self) -> str:
        """Where its command is: module:name."""
        return self.where or f"{self.home('command')}:{self.name}"

    @property
    def spec(self) -> type[JobSpec]:
        """Its declaration."""
        found: type[JobSpec] = getattr(import_module(self.folder), f"{self.name.capitalize()}Spec")
        return found

    @property
    def outcome(self) -> type[Outcome]:
        """The outcome of one of its jobs."""
        from farm.client.model import Outcome
        from farm.kinds import outcomes

        found: type[Outcome] = getattr(outcomes, f"{self.name.capitalize()}Outcome", Outcome)
        return found

    def executor(self, parts: ExecutorParts) -> Executor:
        """The executor of its attempts in the daemon."""
        made: Executor = getattr(self.part("executor"), f"{self.name.capitalize()}Executor")(parts)
        return made


class KindRegistry(Mapping[str, "type[JobSpec]"]):
    """Kinds by name; as a mapping, their specs."""

    def __init__(self, *kinds: JobKind) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self._specs: dict[str, type[JobSpec]] = {}  # those asked for: a start with 100,000 jobs asks twice for each

    def __getitem__(self, name: str) -> type[JobSpec]:
        if name not in self._specs:
            self._specs[name] = self.kinds[name].spec
        return self._specs[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping, without the exception and the calls in between."""
        return self._specs.get(name) or (self[name] if name in self.kinds else default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)

    def pooled(self, name: str) -> bool:
        """Whether a job of that kind holds several phones at once; not of a kind of another release."""
        return name in self.kinds and self[name].pooled


KINDS = KindRegistry(
    JobKind("bench", "Time a model on phones, and say whether to trust it"),
    JobKind(
        "program", "Time a model under another runtime, by its own program", where="farm.kinds.program.command:app"
    ),
    JobKind("memory", "Say how long a model takes to load, and its memory", checked=True),
    JobKind("energy", "Say how many joules an inference takes", checked=True),
    JobKind("untethered", "Say how many joules a program takes without the cable"),
    JobKind("sweep", "Say which number of threads and which cores are fastest"),
    JobKind("sustain", "Say how fast a model stays when it runs for minutes", checked=True),
    JobKind("compare", "Say which of two builds of a model is faster"),
    JobKind("run", "Run a model once, on a phone or here; keep its outputs"),
    JobKind("tune", "Search for fast schedules of a model's operators"),
    JobKind("shell", "Run a line in the shells of phones", section="Jobs"),
    JobKind("lease", "A phone of your own for a while; who holds which", section="Phones", where="farm.cli.lease:app"),
)
