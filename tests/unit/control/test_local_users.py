"""`[lab] users`: a login name is one person of the lab, or of one host."""

import os

from farm.common.peers import name_at
from farm.control.callers import LocalUsers
from farm.head.config import LabConfig


async def test_names_are_those_of_all_hosts_or_of_one():
    shared, local = (LabConfig(host="lab3", head="apart", users=users) for users in ("shared", "local"))
    assert (shared.users_at, local.users_at) == ("", "lab3")
    uid = os.getuid()
    plain = (await LocalUsers(at=shared.users_at).principal_of(uid)).user
    told_apart = await LocalUsers(at=local.users_at).principal_of(uid)
    assert told_apart.user == f"{plain}@lab3"
    assert name_at("", "lab3") == ""


async def test_a_login_may_use_phones_as_its_uid_may():
    users = LocalUsers()
    assert [await users.may_use_phones(login) for login in ("root", "nobody", "uid-12345", "no such login")] == [
        True, False, False, False,
    ]  # fmt: skip
