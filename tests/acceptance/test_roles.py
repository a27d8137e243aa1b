"""Who may do what: the kernel says who asks, and a stranger may look at most."""

import subprocess
import sys

import pytest

from farm.common.errors import ExitCode
from tests.support.tvm import environment
from tests.support.users import needs_another_user
from tests.support.whole_farm import Story, phones, refused

NOBODY = 65534

pytestmark = [needs_another_user, pytest.mark.farm("huawei-mate-20")]


@pytest.fixture
def stranger(farm):
    """Run a `farm` command as nobody."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "farm", *arguments], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
            env=environment() | {"FARM_SOCKET": str(farm.socket), "HOME": "/"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


@pytest.mark.usefixtures("open_socket")
def test_another_user_who_can_connect_may_view(farm, stranger):
    looked = stranger("status")
    assert looked.returncode == ExitCode.OK, looked
    assert phones(farm)[0].name in looked.stdout


@pytest.mark.usefixtures("open_socket")
@pytest.mark.parametrize("arguments", [("device", "drain", "{}"), ("shell", "--on", "android", "--", "true")])
def test_another_user_who_can_connect_changes_nothing(farm, stranger, arguments):
    name, story = phones(farm)[0].name, Story(farm)
    refused(stranger(*(word.format(name) for word in arguments)), ExitCode.NOT_ALLOWED, "nobody is viewer")
    story.read()
    assert story.events == []
    assert phones(farm)[0].row["state"] == "ready"
