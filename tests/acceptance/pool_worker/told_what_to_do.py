"""A tune worker that does what a test writes into the file that is its model's name, a line at a time."""

import os
import time
from pathlib import Path

from farm.common.errors import FarmError
from farm.kinds.tune import TuneTask
from farm.model.specs import task_from_wire
from farm.worker.session import opened

POLL_S = 0.05


def main(payload, daemon):
    task, phones = task_from_wire(TuneTask, payload), daemon
    phones.search(on=True)
    done, said = 0, None
    used = set()
    while True:
        state = phones.state()
        now = ([phone.device for phone in state.phones], state.wanted, state.waits)
        if now != said:
            said = now
            daemon.progress("pool", seen=now[0], wanted=now[1], waits=now[2])
        for phone in state.phones:
            if phone.yield_wanted:
                phones.give_back(phone.lease)
            elif phone.lease not in used:
                try:
                    with opened(phones.open_session(phone.lease)) as session:
                        session.function("runtime.config_threadpool")
                    used.add(phone.lease)
                    daemon.progress("used", on=phone.device, lease=phone.lease)
                except FarmError as error:
                    daemon.progress("lost", on=phone.device, code=error.code)
        lines = Path(task.spec.name).read_text().splitlines()
        for line in lines[done:]:
            verb, _, rest = line.partition(" ")
            done += 1
            match verb:
                case "end":
                    return {"search_s": task.search_s, "phones": []}
                case "die":
                    os._exit(3)
                case "give":
                    phones.give_back(next(phone.lease for phone in state.phones if phone.device == rest))
                case "open":
                    try:
                        phones.open_session(rest)
                    except FarmError as error:
                        daemon.progress("refused", code=error.code)
                case "abort":
                    phones.abort_session(next(phone.lease for phone in state.phones if phone.device == rest), "test")
                case "keep":
                    version = daemon.keep_records(
                        model=rest, name="net", target=task.target, artifact=rest, records=1, best={"a": 1}
                    )
                    daemon.progress("kept", version=version)
                case "poison":
                    phones.poisoned([rest])  # a worker tells only of what it has asked about
                    phones.report_poison(rest, state.phones[0].device, "SIGSEGV")
                    daemon.progress("told", poisoned=sorted(phones.poisoned([rest, "f" * 64])))
        time.sleep(POLL_S)
