"""A change that has begun continues to its end, whoever leaves."""

import asyncio
import logging

import pytest

from farm.common.errors import UserError
from farm.store import database
from farm.store.database import run_to_completion


class Book:
    """A change of two steps."""

    def __init__(self):
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.steps = []

    @run_to_completion
    async def change(self, word, *, fails=False):
        """Say it twice."""
        self.steps.append(word)
        self.begun.set()
        await self.may_go_on.wait()
        if fails:
            raise UserError("no")
        self.steps.append(word)
        return word

    async def left(self, **how):
        """A caller that was cancelled in the middle of a change."""
        caller = asyncio.create_task(self.change("a", **how))
        await self.begun.wait()
        caller.cancel()
        await asyncio.sleep(0)
        return caller


async def test_what_it_returns_and_raises_is_the_callers():
    book = Book()
    book.may_go_on.set()
    assert await book.change("a") == "a"
    with pytest.raises(UserError, match="no"):
        await book.change("b", fails=True)
    assert book.steps == ["a", "a", "b"]
    assert Book.change.__doc__ == "Say it twice."


async def test_a_caller_that_leaves_is_cancelled_after_the_end():
    book = Book()
    caller = await book.left()
    assert not caller.done()
    book.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert book.steps == ["a", "a"]


async def test_a_caller_that_leaves_does_not_wait_for_ever(numbers, caplog):
    numbers(database, CANCEL_LIMIT_S=0.0)
    caplog.set_level(logging.DEBUG)
    book = Book()
    with pytest.raises(asyncio.CancelledError):
        await (await book.left(fails=True))
    (left,) = database._running
    book.may_go_on.set()
    await asyncio.wait((left,))
    await asyncio.sleep(0)
    assert not database._running
    assert "Book.change: no" in caplog.text.replace("UserError('no')", "no")
