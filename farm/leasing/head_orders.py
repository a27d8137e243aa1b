"""Orders to a head apart, and questions: each is a letter to it, and so is the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from farm.common.errors import Code, HostError, error_from_wire
from farm.head import orders
from farm.head.messages import Order, OrderAnswer

ANSWER_LIMIT_S = 5.0  # a takeover may take longer, and a person does not wait for it


class HeadOrders:
    """The orders of one host that are under way."""

    def __init__(self, prefix: str, send: Callable[[Order], Awaitable[None]]) -> None:
        """`prefix`: of ids, unique among the starts of hosts. `send`: writes an order's letter and wakes the head."""
        self._prefix = prefix
        self._send = send
        self._answers: dict[str, asyncio.Future[OrderAnswer]] = {}  # by order
        self._counter = 0

    async def give(self, method: str, **fields: Any) -> Any:
        """Have the head carry out one of its methods; returns what that returns.

        Raises:
            HostError: no head answers.
            FarmError: what the method raises.
        """
        self._counter += 1
        order = Order(f"{self._prefix}-{self._counter}", method, orders.to_wire(method, fields))
        self._answers[order.id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await self._send(order)
                answer = await self._answers[order.id]
        except TimeoutError as error:
            raise HostError(
                f"the lab's head has not answered for {ANSWER_LIMIT_S:g} s",
                Code.HEAD_AWAY,
                hint="see whether `farm head` runs; the order may still be carried out when it is back",
            ) from error
        finally:
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
