"""The RPC server of `farm tune --on host`: who has its key may run code, so nobody else may read it."""

import psutil

from farm.tuning.phones import HostPhones
from farm.tuning.session import CandidateSession


def test_the_key_is_on_no_command_line_and_opens_a_session():
    with HostPhones() as phones:
        offer = phones.open_session("host")
        running = psutil.Process().children(recursive=True)
        lines = [" ".join(process.cmdline()) for process in running]
        assert any("farm.tuning.phones" in line for line in lines)
        assert not any(offer.key in line for line in lines)
        session = CandidateSession.open(offer)
        session.ping()
        session.close()
