"""Users share phones by the time that their jobs occupy them, the cleaning and checking after each job included."""

from datetime import datetime
from itertools import pairwise

import pytest

from farm.client import Client
from farm.kinds.shell import ShellSpec
from tests.support.other_users import ELSEWHERE, key_of
from tests.support.whole_farm import Story, until_ready

JOBS = {"short": (1, 12), "long": (3, 9)}  # user: seconds of a job, how many jobs

pytestmark = [pytest.mark.farm("galaxy-s9", config=ELSEWHERE), pytest.mark.timeout(400)]


def test_short_jobs_and_long_ones_occupy_a_phone_equally_long(farm, tmp_path):
    until_ready(farm)
    story, clients = Story(farm), {}
    try:
        for user, (seconds, count) in JOBS.items():
            client = clients[user] = Client(key=key_of(farm, user, "user", tmp_path))
            for _ in range(count):
                client.submit(ShellSpec(on="android", command=f"sleep {seconds}"))
        left = {user: count for user, (_, count) in JOBS.items()}
        grants = []
        while all(left.values()):  # both wait for the phone: whoever gets it was chosen
            grants.append(story.until("lease.granted"))
            left[grants[-1]["data"]["user"]] -= 1
    finally:
        for client in clients.values():
            client.close()
    occupied = dict.fromkeys(JOBS, 0.0)
    turns = []
    for grant, following in pairwise(grants):
        begun, ended = (datetime.fromisoformat(each["at"]) for each in (grant, following))
        turns.append((ended - begun).total_seconds())
        occupied[grant["data"]["user"]] += turns[-1]
    ratio = occupied["short"] / occupied["long"]
    print(f"phone time: {occupied}, ratio {ratio:.2f} after {len(turns)} jobs")
    # Whoever has had less gets the next turn, so no more than one turn lies between them.
    assert abs(occupied["short"] - occupied["long"]) <= 1.1 * max(turns)
    used = {row["name"]: row for row in farm.client.call("usage", since=grants[0]["at"])["usage"]}
    for user, seconds in occupied.items():
        assert used[user]["cleaned_s"] > 0
        assert used[user]["held_s"] + used[user]["cleaned_s"] == pytest.approx(seconds, rel=0.3)
