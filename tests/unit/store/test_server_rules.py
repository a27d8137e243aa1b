"""What farm says of a PostgreSQL server, from what it saw there."""

from dataclasses import replace

import pytest

from farm.common.doctor_findings import FAIL, OK, WARN
from farm.store.server_rules import (
    CONNECTIONS,
    ROLE,
    STANDBY,
    ServerFacts,
    connect_fault,
    findings_of,
    is_mistake,
    problems_in,
)

GOOD = ServerFacts("15.4", 150_004, "UTF8", False, False, False, 90, 100, 1, "farm", False, 0.001, 0.1)


def test_a_good_server_has_nothing_wrong():
    found = list(findings_of(GOOD))
    assert {each.verdict for each in found} == {OK}
    assert problems_in(found) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "13.2", "version_number": 130_002}, "PostgreSQL 13.2; farm needs 14"),
        ({"pooled": True}, "connection pooler"),
        ({"encoding": "LATIN1"}, "encoding is LATIN1"),
        ({"standby": True, "read_only": True}, "hot standby"),
        ({"read_only": True}, "the server is read-only"),
    ],
)
def test_a_server_that_cannot_be_used(change, words):
    first, *rest = findings_of(replace(GOOD, **change))
    assert (first.verdict, words in first.detail, bool(first.fix)) == (FAIL, True, True)
    assert {each.verdict for each in rest} == {OK}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"free_connections": CONNECTIONS - 1}, "too few connections"),
        ({"round_trip_s": 0.5}, "500.0 ms"),
        ({"offset_s": 3600.0}, "clock is 3600.0 s ahead of this host's"),
        ({"offset_s": -3600.0}, "clock is 3600.0 s behind this host's"),
    ],
)
def test_a_server_that_is_doubtful_is_a_problem_of_status(change, words):
    found = list(findings_of(replace(GOOD, **change)))
    (warned,) = [each for each in found if each.verdict is not OK]
    assert (warned.verdict, words in warned.detail) == (WARN, True)
    (line,) = problems_in(found)
    assert words in line
    assert warned.fix in line


@pytest.mark.parametrize(
    ("change", "check"), [({"synchronous_standbys": 0}, STANDBY), ({"may_make_roles": True}, ROLE)]
)
def test_what_is_advice_of_doctor_only(change, check):
    found = list(findings_of(replace(GOOD, **change)))
    (advice,) = [each for each in found if each.verdict is not OK]
    assert (advice.check, advice.verdict) == (check, WARN)
    assert problems_in(found) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('FATAL:  database "nope" does not exist', "no such database"),
        ('FATAL:  role "ann" does not exist', "no such role"),
        ('FATAL:  role "farm_41c8a0de_lab2" does not exist', "removed from the lab"),
        ('FATAL:  password authentication failed for user "farm_41c8a0de_lab2"', "removed from the lab"),
        ('FATAL:  password authentication failed for user "farm"', "the password is wrong"),
        ('FATAL:  too many connections for role "farm_41c8a0de_lab2"', "no connection left"),
        ('FATAL:  too many connections for role "ann"', "no connection left"),
        ("FATAL:  sorry, too many clients already", "no connection left"),
        ("failed to resolve host 'no.such.host': [Errno -2] Name or service not known", "name is not known"),
        ('FATAL:  permission denied for database "nope"', ""),
        ("connection failed: SSL error: certificate verify failed", "not trusted"),
        ("connection failed: SSL error: tlsv1 alert unknown ca", "TLS is refused"),
        ("consuming input failed: SSL error: unexpected eof while reading", ""),  # it crashed
        ("consuming input failed: SSL SYSCALL error: EOF detected", ""),
        ("consuming input failed: SSL connection has been closed unexpectedly", ""),
        ("a sentence in another language", ""),
    ],
)
def test_what_a_failed_connection_means(words, reason):
    fault = connect_fault(words)
    assert (reason in fault[0]) if reason else fault is None
    assert is_mistake(words) == (bool(reason) and "connection left" not in reason and "not known" not in reason)
