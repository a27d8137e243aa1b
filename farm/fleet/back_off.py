"""How long a device is left alone between two attempts."""

from __future__ import annotations

import tenacity

# Before attempt n after a failure: 0.5 s, 1 s, 2 s ... with jitter, so that a hub that came back is not stormed.
POLICY = tenacity.AsyncRetrying(
    wait=tenacity.wait_exponential(multiplier=0.5, max=60.0) + tenacity.wait_random(0.0, 0.5)
)


def back_off_s(attempt: int) -> float:
    """Seconds to wait before `attempt` (from 1).

    The life cycle counts attempts, over several kinds of work, so there is no one function for tenacity to call again:
    its policy is asked about that count.
    """
    call = tenacity.RetryCallState(POLICY, fn=None, args=(), kwargs={})
    call.attempt_number = attempt
    return POLICY.wait(call)
