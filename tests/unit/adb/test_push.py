import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from farm.adb import push
from farm.adb.errors import AdbLinkLost, PhonePathRefused, PhoneStorageFull
from farm.adb.push import (
    PushFile,
    batches,
    free_bytes,
    inspect,
    push_tree,
    read_inspection,
    split_paths,
    temporary_name,
)
from farm.common.errors import Code, UserError
from farm.common.files import hash_file
from tests.support.errors import raises_code
from tests.unit.adb.fake_server import ROOT

DF = Path(__file__).parents[2] / "data" / "adb" / "df"


@pytest.fixture
def files(tmp_path):
    contents = {"tvm_rpc": b"\x7fELF" + os.urandom(200_000), "lib/lib a.so": os.urandom(3_000_000), "empty": b""}
    made = []
    for name, content in contents.items():
        local = tmp_path / name.replace("/", "_")
        local.write_bytes(content)
        mode = 0o755 if name == "tvm_rpc" else 0o644
        made.append(PushFile(local, f"{ROOT}/farm/b1/{name}", mode, hashlib.sha256(content).hexdigest()))
    return made


def on_phone(server):
    there = {str(path.relative_to(server.folder)): path for path in server.folder.rglob("*") if path.is_file()}
    return {name: (hash_file(path), path.stat().st_mode & 0o777) for name, path in there.items()}


def wanted(files):
    return {file.remote.removeprefix(ROOT + "/"): (file.sha256, file.mode) for file in files}


async def test_a_tree_arrives_whole_with_its_modes(server, client, files):
    seen = []
    report = await push_tree(client, "FAKE1", files, seen.append)
    assert on_phone(server) == wanted(files)
    total = sum(file.local.stat().st_size for file in files)
    assert (report.pushed_files, report.pushed_bytes, report.skipped, report.verified_by) == (3, total, 0, "sha256sum")
    assert (seen[-1].sent_bytes, seen[-1].total_bytes) == (total, total)
    assert len(seen) >= 4  # the big file in several steps


async def test_an_unchanged_tree_costs_one_round_trip_and_no_bytes(server, client, files):
    await push_tree(client, "FAKE1", files)
    server.spoken.clear()
    report = await push_tree(client, "FAKE1", files)
    assert (report.pushed_files, report.pushed_bytes, report.skipped) == (0, 0, 3)
    assert (await push_tree(client, "FAKE1", [])).skipped == 0
    assert sum(words.startswith("shell") for words in server.spoken) == 1
    assert "sync:" not in server.spoken


async def test_only_what_differs_is_sent(server, client, files):
    await push_tree(client, "FAKE1", files)
    server.local(files[0].remote).write_bytes(b"bit rot")
    server.local(files[2].remote).chmod(0o600)
    report = await push_tree(client, "FAKE1", files)
    assert (report.pushed_files, report.skipped) == (1, 2)
    assert on_phone(server) == wanted(files)


@pytest.mark.parametrize(("tool", "verified_by"), [("md5sum", "md5"), (None, "read back")])
async def test_phones_without_sha256sum(server, client, files, tmp_path, tool, verified_by):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("chmod", "mv", "rm", "df", *([tool] if tool else [])):
        where = shutil.which(name)
        assert where is not None
        (programs / name).symlink_to(where)
    server.path = str(programs)
    report = await push_tree(client, "FAKE1", files)
    assert (report.verified_by, on_phone(server)) == (verified_by, wanted(files))
    assert (await push_tree(client, "FAKE1", files)).pushed_files == 0


async def test_an_interrupted_push_installs_nothing_and_a_repeat_finishes_it(server, client, files):
    server.local(files[0].remote).parent.mkdir(parents=True)
    server.local(files[0].remote).write_bytes(b"the old program")
    server.cut_after = 1_000_000
    with pytest.raises(AdbLinkLost):
        await push_tree(client, "FAKE1", files)
    assert {path: server.folder.joinpath(path).read_bytes() for path in on_phone(server)} == {
        "farm/b1/tvm_rpc": b"the old program"
    }
    server.cut_after = None
    assert (await push_tree(client, "FAKE1", files)).pushed_files == 3
    assert on_phone(server) == wanted(files)


async def test_a_phone_that_goes_before_it_has_taken_a_file_is_a_lost_link(server, client, files):
    async def go(reader, writer):
        writer.write(b"OKAY")
        await reader.readuntil(b"DONE")
        server.serial = "gone"  # nothing can be removed there now

    server.services["sync:"] = go
    with pytest.raises(AdbLinkLost, match="FAKE1 ended in the middle of a file"):
        await push_tree(client, "FAKE1", files[2:])
    assert server.spoken[-1] == "host:transport:FAKE1"


async def test_a_disk_that_fills_up_is_told_in_the_phones_words(server, client, files):
    server.full_after = 2_000_000
    with pytest.raises(PhoneStorageFull) as caught:
        await push_tree(client, "FAKE1", files)
    assert caught.value.evidence == "remote write failed: No space left on device"
    assert on_phone(server) == {}


async def test_too_little_space_is_seen_before_a_byte_is_sent(server, client, files, monkeypatch):
    monkeypatch.setattr(push, "RESERVE_BYTES", 1 << 60)
    with pytest.raises(PhoneStorageFull, match="MiB free"):
        await push_tree(client, "FAKE1", files)
    assert "sync:" not in server.spoken


async def test_damage_on_the_way_is_noticed_and_nothing_installed(server, client, files):
    server.damage = True
    with raises_code(Code.PUSH_MISMATCH, match="arrived damaged") as caught:
        await push_tree(client, "FAKE1", files)
    assert files[0].sha256 in caught.value.evidence
    assert on_phone(server) == {}


async def test_a_folder_in_the_way(server, client, files):
    server.local(files[0].remote).mkdir(parents=True)
    with pytest.raises(PhonePathRefused, match="Is a directory"):
        await push_tree(client, "FAKE1", files)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *(
            (lambda file, remote=remote: [replace(file, remote=remote)], "absolute path")
            for remote in ("relative", "/data/../etc/x", "/data/a\nb", "/data/a\\b", "")
        ),
        (lambda file: [file, file], "two files would go to"),
        (lambda file: [replace(file, local=file.local.with_name("gone"))], "does not exist"),
        (lambda file: [replace(file, sha256="0" * 64)], "is not the file it was"),
    ],
)
async def test_what_cannot_be_pushed_is_the_users_fault(client, files, asked, said):
    with pytest.raises(UserError, match=said):
        await push_tree(client, "FAKE1", asked(files[0]))


@pytest.mark.parametrize(
    ("name", "line", "free"),
    [
        ("galaxy-android4-toolbox", "/data ", 8 << 30),
        ("asus-tf201-ics-toolbox", "/data ", 53 << 30),
        ("sony-so02h-android601", "/data ", int(9.8 * (1 << 30))),
        ("wear-msm8909-android8", "userdata", 1295124 << 10),
        ("mtk-android14-df-h", "/data\n", 1 << 30),
        ("atv-a9-df-h", "/odm", 123 << 20),
        ("busybox-mtdblock-wrapped", "/data\n", int(138.1 * (1 << 20))),
    ],
)
def test_free_space_from_every_generation_of_df(name, line, free):
    lines = (DF / f"{name}.txt").read_text().splitlines()
    header = next(text for text in lines if text.startswith("Filesystem"))
    row = next(text for text in lines if line in text + "\n")
    assert free_bytes(f"{header}\n{row}") == free


def test_free_space_of_stat_and_of_silence():
    assert free_bytes("space 10 4096") == 40960
    assert free_bytes("df: not found") is None


def test_a_failed_inspection_is_not_an_empty_phone():
    assert read_inspection(["/a"], "sh: set: not found") is None
    assert read_inspection(["/a"], "tool sha256sum\nfiles\nmodes\nhashes\n") is None


def test_requests_stay_within_the_phones_limit():
    paths = [f"/data/local/tmp/farm/bundles/{'f' * 64}/lib{number}.so" for number in range(300)]
    groups = list(split_paths(paths, 3072))
    assert [path for group in groups for path in group] == paths
    assert max(len(inspect(group).encode()) for group in groups) < 3072
    assert all(len(text) <= 3072 for text in batches([f"rm -f {path}" for path in paths]))


def test_a_temporary_name_is_hidden_and_beside_its_place():
    assert temporary_name("/data/x/lib.so") == "/data/x/.lib.so.farm-part"
