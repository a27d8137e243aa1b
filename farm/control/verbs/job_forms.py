"""What the verbs about jobs are asked: their fields, checked."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from farm.control.forms import MAX_COUNT, Count, form
from farm.core.job import JobState
from farm.core.limits import MAX_JOBS_AT_ONCE
from farm.jobs.logs import PAGE_LINES

MAX_PAGE = 500  # rows of about 700 bytes, with errors 2 kB
MAX_WATCHED = 1000

Key = Annotated[str, Field(max_length=128, pattern=r"^[\x21-\x7e]*$")]

Searched = Annotated[str, Field(max_length=200)]


@form
class Submit:
    """`job.submit`. `key`: the same again adds nothing. `must_match`: refuse what no phone could run now."""

    spec: dict[str, Any]
    key: Key = ""
    must_match: bool = False


@form
class Check:
    """`job.check`: whether all of these could be submitted, together with `besides` jobs that were checked before."""

    entries: Annotated[tuple[Submit, ...], Field(max_length=MAX_JOBS_AT_ONCE)]
    besides: Annotated[int, Field(ge=0)] = 0


@form
class ListJobs:
    """`job.list`: newest first. `of_kind` is not called `kind` because that is the request's own.

    `jobs`: only these, by their ids or their arrays'.
    """

    state: tuple[JobState, ...] = ()
    user: str = ""
    of_kind: str = ""
    array: str = ""
    jobs: Annotated[tuple[str, ...], Field(max_length=MAX_WATCHED)] = ()
    before: str = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50
    text: Searched = ""  # in its id, phone, selector or spec, any case; with this or the next two not all is looked at
    selector: Searched = ""  # canonical text, whole
    device: Searched = ""


@form
class OneJob:
    """A job's id or the beginning of it, or an array."""

    job: Annotated[str, Field(min_length=1, max_length=200)]


@form
class Cancel:
    """`job.cancel`: a job or an array; or whatever of a user's (one's own) has not ended and meets the other fields.

    Answers about at most 500 of the latter; `more`: again, with `before` the last of them.
    """

    job: Annotated[str, Field(max_length=200)] = ""
    array: str = ""
    key: Key = ""  # of a submit
    user: str = ""
    state: tuple[JobState, ...] = ()
    before: str = ""


@form
class Watch:
    """`job.watch`: events of these jobs and arrays after `since`.

    `attended`: nobody wants what has not begun when this caller goes; it is cancelled then.
    """

    jobs: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_WATCHED)]
    since: Count = 0
    attended: bool = False


@form
class Logs:
    """`job.logs`. `number`: which attempt (that name is the request's own); None: the latest."""

    job: str
    number: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    after: Count = 0
    follow: bool = False


@form
class LogTail:
    """`job.log_tail`: the last lines before the position `before` (None: the end) of attempt `number` or the latest.

    `after`: in place of that, the first ones after this position.
    """

    job: str
    number: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    before: Count | None = None
    after: Count | None = None
    limit: Annotated[int, Field(ge=1, le=PAGE_LINES)] = 200
