"""Who is at the other end of a unix socket, and what a user is called."""

import os
import pwd
import socket

from farm.common.peers import peer_process, user_name


def test_the_kernel_says_who_is_at_the_other_end():
    one, other = socket.socketpair()
    with one, other:
        assert peer_process(one) == (os.getpid(), os.geteuid(), os.getegid())


def test_a_user_without_a_name_is_called_by_the_number():
    nobody = max(user.pw_uid for user in pwd.getpwall()) - 1
    while any(user.pw_uid == nobody for user in pwd.getpwall()):
        nobody -= 1
    assert user_name(nobody) == f"uid-{nobody}"
    assert user_name(0) == pwd.getpwuid(0).pw_name
