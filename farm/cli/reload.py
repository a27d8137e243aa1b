"""`farm reload`: the daemon reads its configuration again."""

from __future__ import annotations

from farm.cli.context import JsonFlag, call, print_json, tell


def reload(json: JsonFlag = False) -> None:
    """Read the daemon's configuration again, without cutting anybody's session (operators).

    It is checked as a whole first: with a mistake in it, the old one holds on. `systemctl reload farm` and SIGHUP do
    the same; what was wrong stands in the log then.
    """
    answer = call("reload")
    if json:
        print_json(answer)
        return
    applied, restart = answer["applied"], answer["restart"]
    tell(f"in force now: {', '.join(applied)}" if applied else "nothing has changed that can be in force at once")
    for note in answer.get("notes", ()):
        tell(f"note: {note}")
    if restart:
        tell(f"after a restart: {', '.join(restart)}")
        tell("restart the daemon when it suits: jobs go on afterwards (a service: systemctl restart farm)")
