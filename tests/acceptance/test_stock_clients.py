"""Unmodified TVM programs from the installed wheel against a running daemon with phones."""

import sys
from pathlib import Path

import pytest

from tests.support.whole_farm import Story, phones, until

pytestmark = pytest.mark.farm("oneplus-12", "realme-gt-neo3")


def queue(farm):
    return {row["key"]: (row["total"], row["free"], row["pending"]) for row in farm.status()["keys"]}


def test_the_wheel_is_as_it_was_installed():
    import tvm.rpc

    assert Path(tvm.rpc.__file__).is_relative_to(Path(sys.prefix))


@pytest.mark.parametrize("key", ["android", "adreno-750", "sm8650", "name"])
def test_every_key_of_a_phone_leads_to_it(farm, clients, key):
    phone = phones(farm)[0]
    if key == "android":
        farm.farm("device", "drain", phones(farm)[1].name)
    asked = phone.name if key == "name" else key
    story = Story(farm)
    assert clients.result(f"session = connect().request({asked!r}); tell(add_one(session)); close(session)") is True
    assert story.until("lease.released")["data"]["device"] == phone.name
    assert story.kinds(rooms="lease session") == ["lease.granted", "session.opened", "session.ended", "lease.released"]
    farm.farm("device", "release", phones(farm)[1].name)


ASK = """
tracker = connect(); tell("here"); wait()
session = tracker.request("android"); tell(add_one(session)); wait()
"""


def asking(clients):
    """A program that asks at the first `go`, tells when it has a phone, and gives it back at the second."""
    return clients.running(ASK)


def waiting(farm):
    return len(farm.client.call("lease.list")["waiting"])


def test_two_clients_get_two_phones_and_a_third_waits_for_the_first_that_is_free(farm, clients):
    with asking(clients) as one, asking(clients) as two, asking(clients) as three:
        assert [client.hear() for client in (one, two, three)] == ["here"] * 3
        story = Story(farm)
        for client in (one, two):
            client.go()
            assert client.hear() is True
        three.go()
        until(lambda: waiting(farm) == 1)
        assert queue(farm)["android"] == (2, 0, 1)
        one.go()
        assert three.hear() is True
        story.until("lease.released")
        story.until("lease.granted")
    happened = [event for event in story.events if event["kind"].startswith("lease.")]
    assert [event["kind"] for event in happened] == ["lease.granted"] * 2 + ["lease.released", "lease.granted"]
    first, second, freed, third = (event["data"]["device"] for event in happened)
    assert {first, second} == {phone.name for phone in phones(farm)}
    assert first == freed == third


def test_time_evaluation_and_files_work_as_on_any_server(clients):
    seconds, length = clients.result(
        """
        import numpy as np
        from tvm.runtime import tensor
        session = connect().request("mali-g610", session_timeout=60)
        assert add_one(session)
        session.upload(bytearray(b"x" * 5_000_000), "blob.bin")
        function = session.load_module("add_one.so")
        arrays = [tensor(np.zeros(1024, "float32"), session.cpu(0)) for _ in range(2)]
        timed = function.time_evaluator("add_one", session.cpu(0), number=10, repeat=3)(*arrays)
        tell([list(timed.results), len(session.download("blob.bin"))])
        """
    )
    assert len(seconds) == 3
    assert all(0 < each < 1 for each in seconds)
    assert length == 5_000_000


def test_metaschedules_runner_measures_its_candidates_on_both_phones(farm, clients):
    story = Story(farm)
    servers, results = clients.result(
        """
        if __name__ == "__main__":
            from tvm.s_tir import meta_schedule as ms
            config = ms.runner.RPCConfig(host, port, "android", session_timeout_sec=60)
            evaluator = ms.runner.EvaluatorConfig(number=1, repeat=3, min_repeat_ms=200)
            runner = ms.runner.RPCRunner(config, evaluator, max_workers=2)
            arguments = [ms.arg_info.TensorInfo("float32", [1024])] * 2
            futures = runner.run([ms.runner.RunnerInput(kernel, "cpu", arguments) for _ in range(6)])
            results = [future.result() for future in futures]
            tell([config.count_num_servers(), [[len(r.run_secs or ()), r.error_msg] for r in results]])
        """
    )
    assert servers == 2
    assert results == [[3, None]] * 6
    while story.kinds().count("lease.released") < 6:
        story.until("lease.released")
    used = [event["data"]["device"] for event in story.events if event["kind"] == "session.opened"]
    assert set(used) == {phone.name for phone in phones(farm)}
    assert len(used) == 6
