"""Orders to a head apart, and questions: each is a letter to it, and so is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from farm.common.errors import Code, FarmError, HostError, error_from_wire
from farm.head import orders
from farm.head.head import Head
from farm.head.messages import Order, OrderAnswer
from farm.head.model import Explanation, JobExplanation, WaitingPage
from farm.head.planning import Submission
from farm.model.specs import JobSpec
from farm.store.leases import ReservationRecord
from farm.store.writer import StoreWriteError

ANSWER_LIMIT_S = 5.0  # a takeover may take longer, and a person does not wait for it
SETTLE_PART_S = 2.0  # of one order to wait for jobs


class HeadOrders:
    """The orders of one host that are under way."""

    def __init__(self, prefix: str, send: Callable[[Order], Awaitable[None]]) -> None:
        """`prefix`: of ids, unique among the starts of hosts. `send`: writes an order's letter."""
        self._prefix = prefix
        self._send = send
        self._answers: dict[str, asyncio.Future[OrderAnswer]] = {}  # by order
        self._counter = 0

    async def give(self, method: str, **fields: Any) -> Any:
        """Have the head carry out one of its methods; returns what that returns.

        Raises:
            HostError: no head answers, or the database does not.
            FarmError: what the method raises.
        """
        self._counter += 1
        order = Order(f"{self._prefix}-{self._counter}", method, orders.to_wire(method, fields))
        self._answers[order.id] = asyncio.get_running_loop().create_future()
        sending = asyncio.ensure_future(self._send(order))
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

    async def reasons(self, method: str, **ids: tuple[str, ...]) -> Mapping[str, str]:
        """The head's answer about each of these ids; while no head answers, that is the answer."""
        try:
            answer: Mapping[str, str] = await self.give(method, **ids)
        except HostError as error:
            (asked,) = ids.values()
            return dict.fromkeys(asked, error.message)
        return answer

    def receive(self, answer: OrderAnswer) -> None:
        """The head has answered an order; late answers are dropped."""
        waiting = self._answers.get(answer.order)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


class RemoteOrders(Head):
    """The orders and questions of `Head` that a head apart answers."""

    _orders: HeadOrders
    _clock: Callable[[], float]  # monotonic seconds

    async def submit(self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False) -> Submission:
        """See `Dispatcher.submit`."""
        answer: Submission = await self._orders.give("submit", spec=spec, user=user, key=key, must_match=must_match)
        return answer

    async def check(
        self, spec: JobSpec, user: str, *, key: str = "", must_match: bool = False, besides: int = 0
    ) -> int:
        """See `Dispatcher.check`."""
        answer: int = await self._orders.give(
            "check", spec=spec, user=user, key=key, must_match=must_match, besides=besides
        )
        return answer

    async def cancel(self, job_ids: Sequence[str], error: FarmError) -> Sequence[str]:
        """See `Head.cancel`."""
        answer: Sequence[str] = await self._orders.give("cancel", job_ids=tuple(job_ids), error=error)
        return answer

    async def hold(self, job_ids: Sequence[str]) -> Sequence[str]:
        """See `Head.hold`."""
        answer: Sequence[str] = await self._orders.give("hold", job_ids=tuple(job_ids))
        return answer

    async def resume(self, job_ids: Sequence[str]) -> Sequence[str]:
        """See `Head.resume`."""
        answer: Sequence[str] = await self._orders.give("resume", job_ids=tuple(job_ids))
        return answer

    async def settle(self, job_ids: Sequence[str], limit_s: float) -> bool:
        """Ask in parts, each shorter than an order may take."""
        until_s = self._clock() + limit_s
        while (left_s := until_s - self._clock()) > 0:
            part_s = min(left_s, SETTLE_PART_S)
            if await self._orders.give("settle", job_ids=tuple(job_ids), limit_s=part_s):
                return True
        return False

    async def reserve(
        self, selector: str, user: str, starts_at: datetime, ends_at: datetime, note: str = ""
    ) -> ReservationRecord:
        """See `ReservationRegistry.add`."""
        answer: ReservationRecord = await self._orders.give(
            "reserve", selector=selector, user=user, starts_at=starts_at, ends_at=ends_at, note=note
        )
        return answer

    async def remove_reservation(self, reservation_id: str) -> ReservationRecord:
        """See `ReservationRegistry.remove`."""
        answer: ReservationRecord = await self._orders.give("remove_reservation", reservation_id=reservation_id)
        return answer

    async def is_live(self, job_id: str) -> bool:
        """See `Head.is_live`."""
        answer: bool = await self._orders.give("is_live", job_id=job_id)
        return answer

    async def why(self, request_ids: Sequence[str]) -> Mapping[str, str]:
        """The reasons; while no head answers, that is the reason."""
        return await self._orders.reasons("why", request_ids=tuple(request_ids))

    async def explain(self, subject: str, user: str = "") -> Explanation:
        """See `RequestQueue.explain`."""
        answer: Explanation = await self._orders.give("explain", subject=subject, user=user)
        return answer

    async def explain_job(self, job_id: str) -> JobExplanation:
        """See `Head.explain_job`."""
        answer: JobExplanation = await self._orders.give("explain_job", job_id=job_id)
        return answer

    async def waiting(self, limit: int) -> WaitingPage:
        """See `Head.waiting`."""
        answer: WaitingPage = await self._orders.give("waiting", limit=limit)
        return answer

    async def reservations(self) -> Sequence[ReservationRecord]:
        """See `Head.reservations`."""
        answer: Sequence[ReservationRecord] = await self._orders.give("reservations")
        return answer
