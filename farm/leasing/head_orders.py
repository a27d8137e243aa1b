"""Orders and questions to a head apart: each is a letter to it, and so is the answer.

A method of `Head` is forwarded by its signature (`_forwarded`): its arguments are the order's fields.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from farm.common.errors import Code, HostError, error_from_wire
from farm.head import orders
from farm.head.head import Head
from farm.head.messages import Order, OrderAnswer
from farm.store.writer import StoreWriteError

ANSWER_LIMIT_S = 5.0  # a takeover may take longer, and a person does not wait for it
SETTLE_PART_S = 2.0  # of one order to wait for jobs

T = TypeVar("T")


def _forwarded(method: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """A method of `Head` as `RemoteOrders` has it: an order of its name and its arguments."""
    signature = inspect.signature(method)

    @wraps(method, updated=())  # without the mark of an abstract method
    async def forward(self: RemoteOrders, *args: Any, **fields: Any) -> T:
        given = signature.bind(self, *args, **fields)
        given.apply_defaults()
        _, *named = given.arguments.items()
        answer: T = await self._give(method.__name__, **dict(named))
        return answer

    return forward


class RemoteOrders(Head):
    """The orders and questions of `Head` that a head apart answers, and those of this host that are under way."""

    def __init__(self, prefix: str, send: Callable[[Order], Awaitable[None]], clock: Callable[[], float]) -> None:
        """`prefix`: of ids, unique among the starts of hosts. `send`: writes an order's letter. `clock`: monotonic."""
        self._prefix = prefix
        self._send_order = send
        self._clock = clock
        self._answers: dict[str, asyncio.Future[OrderAnswer]] = {}  # by order
        self._counter = 0

    async def _give(self, method: str, **fields: Any) -> Any:
        """Have the head carry out one of its methods; returns what that returns.

        Raises:
            HostError: no head answers, or the database does not.
            FarmError: what the method raises.
        """
        self._counter += 1
        order = Order(f"{self._prefix}-{self._counter}", method, orders.to_wire(method, fields))
        self._answers[order.id] = asyncio.get_running_loop().create_future()
        sending = asyncio.ensure_future(self._send_order(order))
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await asyncio.wait((sending,))  # a write that has begun does not end when it is cancelled
                await sending
                answer = await self._answers[order.id]
        except StoreWriteError as error:
            if method not in orders.QUESTIONS or not error.reason:
                raise
            message = f"the database cannot be read: {error.reason}"
            raise HostError(message, Code.STORE_READ_FAILED, hint=error.hint, evidence=error.evidence) from error
        except TimeoutError as error:
            if not sending.done():
                raise HostError(
                    f"the lab's database has not answered for {ANSWER_LIMIT_S:g} s",
                    Code.DATABASE_UNUSABLE,
                    hint="see `farm doctor`; what was ordered may be carried out yet: look before you repeat it",
                ) from error
            raise HostError(
                f"the lab's head has not answered for {ANSWER_LIMIT_S:g} s",
                Code.HEAD_AWAY,
                hint="see whether `farm head` runs; a slow one carries the order out yet: look before you repeat it",
            ) from error
        finally:
            sending.cancel()
            del self._answers[order.id]
        if answer.error is not None:
            raise error_from_wire(answer.error)
        return orders.answer_from_wire(method, answer.value)

    async def _reasons(self, method: str, **ids: tuple[str, ...]) -> Mapping[str, str]:
        """The head's answer about each of these ids; while no head answers, that is the answer."""
        try:
            answer: Mapping[str, str] = await self._give(method, **ids)
        except HostError as error:
            (asked,) = ids.values()
            return dict.fromkeys(asked, error.message)
        return answer

    def _answered(self, answer: OrderAnswer) -> None:
        """The head has answered an order; late answers are dropped."""
        waiting = self._answers.get(answer.order)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    submit = _forwarded(Head.submit)
    check = _forwarded(Head.check)
    cancel = _forwarded(Head.cancel)
    hold = _forwarded(Head.hold)
    resume = _forwarded(Head.resume)
    reserve = _forwarded(Head.reserve)
    remove_reservation = _forwarded(Head.remove_reservation)
    is_live = _forwarded(Head.is_live)
    explain = _forwarded(Head.explain)
    explain_job = _forwarded(Head.explain_job)
    waiting = _forwarded(Head.waiting)
    reservations = _forwarded(Head.reservations)

    async def settle(self, job_ids: Sequence[str], limit_s: float) -> bool:
        """Ask in parts, each shorter than an order may take."""
        until_s = self._clock() + limit_s
        while (left_s := until_s - self._clock()) > 0:
            if await self._give("settle", job_ids=tuple(job_ids), limit_s=min(left_s, SETTLE_PART_S)):
                return True
        return False

    async def why(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """The reasons; while no head answers, that is the reason."""
        return await self._reasons("why", request_ids=tuple(request_ids))
