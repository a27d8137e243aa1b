import errno
import json
import os
import shutil
import signal
import threading
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from farm.bundle import library as library_module
from farm.bundle.library import BundleLibrary, NoSuchBundleError
from farm.bundle.model import GOLDEN_FORMAT, GOLDEN_INDEX, Abi, Platform
from farm.bundle.storage import locked
from farm.bundle.versions import TvmVersions
from farm.common.errors import Code, HostError, UserError
from tests.support.errors import raises_code
from tests.support.waiting import HANG_S
from tests.unit.bundle.elves import ANDROID_BUNDLE, LINUX_BUNDLE, Elf, write_folder


def golden(_abi, _platform, kinds, out):
    """A toolchain that is quick: the files are there, the kernels are not."""
    kernels = {}
    for kind in kinds:
        (out / f"{kind}.so").write_bytes(kind.encode())
        (out / f"{kind}.npz").write_bytes(b"expected")
        kernels[kind] = {"library": f"{kind}.so", "expected": f"{kind}.npz"}
    versions = {"tvm_version": "0.27.0", "ffi_version": "0.1.14.post1"}
    index = {"format": GOLDEN_FORMAT, **versions, "linker": "ld.lld", "kernels": kernels}
    (out / GOLDEN_INDEX).write_text(json.dumps(index))


@pytest.fixture
def root(tmp_path):
    return tmp_path / "bundles"


@pytest.fixture
def library(root):
    return BundleLibrary(root)


@pytest.fixture
def android(tmp_path):
    return write_folder(tmp_path / "android", ANDROID_BUNDLE)


@pytest.fixture
def linux(tmp_path):
    return write_folder(tmp_path / "linux", LINUX_BUNDLE)


@pytest.fixture
def add(library, android):
    """Adds the folder of a phone's bundle under a name."""
    return partial(library.add, android, compile_golden=golden)


def test_adding_tells_all_about_a_bundle(library, android, add):
    steps = []
    bundle = add(name="main", toolchain="tvm-0.27", progress=steps.append)
    assert (bundle.name, bundle.names, bundle.toolchain) == ("main", ("main",), "tvm-0.27")
    assert (bundle.abi, bundle.platform) == (Abi.ARM64, Platform.ANDROID)
    assert bundle.versions == TvmVersions("0.27.0", "0.1.14.post1")
    assert bundle.has_opencl
    (silent,) = bundle.warnings
    assert "taken to be TVM 0.27.0 with FFI 0.1.14.post1, as in toolchain tvm-0.27" in silent
    assert {file.name for file in bundle.files} == set(ANDROID_BUNDLE)
    for file in bundle.files:
        stored = bundle.path / file.name
        assert stored.read_bytes() == (android / file.name).read_bytes()
        assert (stored.stat().st_mode & 0o777, stored.stat().st_size) == (file.mode, file.size)
    assert bundle.size_bytes == sum((android / name).stat().st_size for name in ANDROID_BUNDLE)
    assert bundle.golden_kinds == ("cpu", "opencl")
    assert (bundle.golden_dir / "cpu.so").is_file()
    assert steps[-1] == "compiling golden kernels (cpu, opencl) for arm64-v8a"
    assert library.verify() == ()
    assert library.list() == (bundle,)
    assert hash(bundle) == hash(library.get("main"))


def test_without_opencl_only_cpu_kernels_are_wanted(add, linux):
    bundle = add.func(linux, name="virtual", compile_golden=golden)
    assert bundle.golden_kinds == ("cpu",)
    assert (bundle.abi, bundle.platform, bundle.has_opencl) == (Abi.X86_64, Platform.LINUX, False)


def test_the_same_again_is_the_same_bundle_under_one_more_name(library, android, add, tmp_path):
    first = add(name="main")
    os.utime(android / "tvm_rpc")
    (android / "libtvm_ffi.so").chmod(0o600)
    second = add(name="stable", compile_golden=lambda *_: pytest.fail("compiled twice"))
    assert (second.hash, second.names) == (first.hash, ("main", "stable"))
    assert len(library.list()) == 1
    elsewhere = BundleLibrary(tmp_path / "elsewhere").add(android, name="other", compile_golden=golden)
    assert elsewhere.hash == first.hash


def test_a_corrected_description_counts_for_files_that_are_stored_already(library, android, add):
    first = add(name="main")
    (android / "bundle.toml").write_text('tvm_version = "0.25.0"\nffi_version = "0.1.14.post1"\n')
    with raises_code(Code.VERSIONS_UNFIT):
        add(name="main")
    assert library.get("main") == first
    (android / "bundle.toml").write_text('tvm_version = "0.27.0"\n')
    second = add(name="main", compile_golden=lambda *_: pytest.fail("compiled twice"))
    assert (second.hash, second.added_at, len(second.warnings)) == (first.hash, first.added_at, 1)
    (android / "bundle.toml").write_text('tvm_version = "0.27.0"\nffi_version = "0.1.14.post1"\n')
    assert (add(name="stable").warnings, library.verify()) == ((), ())


def test_other_bytes_or_another_toolchain_are_another_bundle(library, android, add):
    first, second = add(name="a"), add(name="b", toolchain="other")
    (android / "libtvm_ffi.so").write_bytes((android / "libtvm_ffi.so").read_bytes() + b"new")
    third = add(name="a")
    assert len({first.hash, second.hash, third.hash}) == 3
    assert library.get("a").hash == third.hash
    assert library.get(first.hash).names == ()


def test_the_bundle_named_last_is_wanted_though_the_clock_was_once_ahead(library, android, add, root):
    old = add(name="old")
    ahead_s = time.time() + 3e7
    os.utime(root / "names/old", (ahead_s, ahead_s))
    (android / "notes").write_text("another")
    new = add(name="new")
    assert library.for_abi(old.abi) == new


def test_a_folder_in_place_of_a_name_is_refused_before_anything_is_kept(library, add, root):
    library.list()
    (root / "names/taken").mkdir(parents=True)
    with pytest.raises(HostError, match="names/taken must be a file, and is a folder"):
        add(name="taken")
    assert library.list() == ()


def half(_abi, _platform, _kinds, out):
    (out / "half").write_text("")
    raise HostError("no linker", hint="install lld")


def forgetful(abi, platform, kinds, out):
    golden(abi, platform, kinds, out)
    (out / "opencl.npz").unlink()


@pytest.mark.parametrize(
    ("toolchain", "said"), [(half, "no linker"), (forgetful, r"lack opencl\.npz")], ids=["fails", "forgets"]
)
def test_a_toolchain_that_fails_or_forgets_a_file_leaves_nothing(library, add, root, toolchain, said):
    with pytest.raises(HostError, match=said):
        add(name="main", compile_golden=toolchain)
    assert library.list() == ()
    assert list((root / "tmp").iterdir()) == []


def test_a_refused_folder_leaves_nothing(library, android, add):
    (android / "libtvm_ffi.so").unlink()
    with raises_code(Code.BAD_BUNDLE, match=r"libtvm_ffi\.so is missing: it is needed by"):
        add(name="main")
    assert library.list() == ()


def test_a_folder_is_judged_as_it_was_copied(library, android, add):
    def rebuild(step):
        if step == "copying libtvm_runtime.so":
            Elf(needed=("libnew.so",)).write(android / "libtvm_runtime.so")

    with raises_code(Code.BAD_BUNDLE, match=r"libnew\.so is missing"):
        add(name="main", progress=rebuild)
    assert library.list() == ()


@pytest.mark.parametrize("name", ["", "Main", "a b", "../x", "-x", "x" * 65, ".hidden", "ä"])
def test_names_are_plain(add, name):
    with pytest.raises(UserError, match="cannot be a bundle's name"):
        add(name=name)


def test_two_at_once_both_arrive(library, android, linux):
    both_compile = threading.Barrier(2, timeout=HANG_S)

    def slow(*asked):
        both_compile.wait()
        golden(*asked)

    adders = [
        threading.Thread(target=library.add, args=(folder,), kwargs={"name": name, "compile_golden": slow})
        for folder, name in ((android, "phone"), (linux, "virtual"))
    ]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join(HANG_S)
    assert {bundle.name for bundle in library.list()} == {"phone", "virtual"}
    assert library.verify() == ()


def test_a_bundle_is_found_by_name_hash_and_prefix(library, add):
    bundle = add(name="main")
    for key in ("main", bundle.hash, bundle.hash[:8], bundle.short_hash):
        assert library.get(key) == bundle
    twin = bundle.path.parent.with_name(bundle.hash[:-1] + ("0" if bundle.hash[-1] != "0" else "1"))
    twin.mkdir()
    with pytest.raises(NoSuchBundleError, match="may be any of 2"):
        library.get(bundle.hash[:10])


def test_an_unknown_name_is_answered_with_the_nearest(library, add):
    with pytest.raises(NoSuchBundleError) as nothing:
        library.get("main")
    assert "farm bundle build" in nothing.value.hint
    add(name="main")
    for asked, hint in (("mian", "did you mean main?"), ("zzzzzz", "there are: main")):
        with pytest.raises(NoSuchBundleError) as unknown:
            library.get(asked)
        assert unknown.value.hint == hint


def test_for_abi_takes_what_was_named_last(library, add, linux, root):
    old, new = add(name="a"), add(name="b", toolchain="newer")
    virtual = library.add(linux, name="v", compile_golden=golden)
    assert library.for_abi("arm64-v8a") == new
    add(name="a")
    os.utime(root / "names/a", ns=(2**62, 2**62))
    assert library.for_abi("arm64-v8a") == old
    assert library.for_abi("x86_64") == virtual
    assert library.for_abi("x86_64", Platform.ANDROID) is library.for_abi("riscv64") is None


def test_a_bundle_is_removed_name_by_name_or_by_its_hash(library, add):
    add(name="a")
    bundle = add(name="b")
    assert library.remove("a") == (("a",), False)
    assert library.get(bundle.hash).names == ("b",)
    assert library.remove("b") == (("b",), True)
    assert (library.list(), bundle.path.exists()) == ((), False)
    add(name="a")
    assert set(library.remove(add(name="b").short_hash)[0]) == {"a", "b"}
    assert library.list() == ()


def test_a_bundle_in_use_keeps_its_last_name(library, add):
    bundle = add(name="a")
    with raises_code(Code.BUNDLE_IN_USE, match="bundle a is in use: on pixel-7"):
        library.remove("a", in_use=lambda asked: "on pixel-7" if asked.hash == bundle.hash else "")
    assert library.get("a") == bundle
    add(name="b")
    assert library.remove("b", in_use=lambda _: "on pixel-7") == (("b",), False)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def replace_in(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


JSON = "manifest.json"


@pytest.mark.parametrize(
    ("break_it", "file", "problem"),
    [
        (Path.unlink, "files/tvm_rpc", "is missing"),
        (flip, "files/tvm_rpc", "has other content"),
        (flip, "golden/cpu.npz", "has other content"),
        (Path.touch, "files/x", "does not belong there"),
        (lambda path: os.truncate(path, 3), "files/tvm_rpc", "has 3 bytes instead of"),
        (Path.unlink, JSON, "is missing"),
        (lambda path: path.write_text("{"), JSON, "is unreadable"),
        (lambda path: replace_in(path, '"arm64-v8a"', '"x86_64"'), JSON, "its hash is another one"),
        (lambda path: replace_in(path, '"format": 1', '"format": 2'), JSON, "has format 2"),
    ],
)
def test_verify_names_what_differs_and_adding_again_repairs(library, add, break_it, file, problem):
    bundle = add(name="a")
    break_it(bundle.path.parent / file)
    (damage,) = library.verify("a")
    assert damage.startswith(f"{file}: ")
    assert problem in damage
    assert library.verify() == (damage,)
    assert add(name="a").hash == bundle.hash
    assert library.verify() == ()


@pytest.mark.parametrize(
    ("break_it", "damage"),
    [
        (lambda manifest: manifest.write_bytes(b"\xff"), "manifest.json is damaged"),
        (lambda manifest: manifest.write_bytes(b"[" * 200_000), "manifest.json is damaged"),
        (lambda manifest: manifest.unlink(), "manifest.json is missing"),
        (lambda manifest: (manifest.unlink(), manifest.mkdir()), "manifest.json cannot be read: Is a directory"),
    ],
)
def test_a_bundle_whose_manifest_is_unreadable_is_listed_as_damaged_and_hides_no_other(
    library, add, linux, break_it, damage
):
    broken, whole = add(name="a"), library.add(linux, name="b", compile_golden=golden)
    break_it(broken.path.parent / JSON)
    first, second = library.list()
    assert first == whole
    assert (second.name, second.names, second.hash, second.abi) == ("a", ("a",), broken.hash, "")
    assert damage in second.damage
    assert library.for_abi("", None) is None
    with pytest.raises(HostError, match=damage):
        library.get("a")
    assert library.hash_of("a") == broken.hash
    assert library.verify("a")
    assert library.remove("a") == (("a",), True)
    assert library.list() == (whole,)


def test_a_stored_bundle_is_read_before_the_lock_is_taken(library, add, root, monkeypatch):
    add(name="a")
    free, sound = [], BundleLibrary._is_sound

    def looks(self, hash_):
        with locked(root / "lock"):
            free.append(hash_)
        return sound(self, hash_)

    monkeypatch.setattr(BundleLibrary, "_is_sound", looks)
    assert add(name="b").names == ("a", "b")
    assert free


@pytest.mark.parametrize(
    "leave",
    [
        lambda root: (root / "names" / "x").mkdir(),
        lambda root: (root / "names" / "x").write_bytes(b"\xff\xfe"),
        lambda root: (root / "objects" / ("0" * 64)).write_text("no folder"),
        lambda root: (root / "tmp" / "junk").touch(),
    ],
    ids=["a folder as a name", "a name that is no text", "a file as a bundle", "a file in the folder for parts"],
)
def test_what_others_left_in_the_library_hides_no_bundle(library, add, root, leave):
    bundle = add(name="a")
    leave(root)
    assert library.list() == (bundle,)
    assert library.get("a") == bundle
    assert library.verify() == ()
    assert add(name="a", toolchain="another").name == "a"


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_while_copying_is_said_and_leaves_nothing(library, add, root, monkeypatch):
    monkeypatch.setattr(library_module, "copy_hashed", full)
    with pytest.raises(HostError, match="adding bundle main failed: No space left on device") as caught:
        add(name="main")
    assert "free some room" in caught.value.hint
    assert list((root / "tmp").iterdir()) == []
    assert library.list() == ()


@pytest.mark.parametrize("fails", ["write_bytes", "mkdir"])
def test_a_disk_that_is_full_at_the_last_step_changes_nothing(library, add, root, monkeypatch, fails):
    """An add cannot write the name; a removal has no room for the folder that it moves through."""
    names, real = root / "names", getattr(Path, fails)
    if fails == "mkdir":
        add(name="main")
    before = library.list()
    monkeypatch.setattr(
        Path, fails, lambda path, *args: (full if before or path.parent == names else real)(path, *args)
    )
    with pytest.raises(HostError, match="main failed: No space left on device"):
        library.remove("main") if before else add(name="main")
    monkeypatch.undo()
    assert library.list() == before
    assert [each.name for each in names.iterdir()] == [name for each in before for name in each.names]


def test_what_is_left_in_the_temporary_folder_fails_no_add(add, root, tmp_path, monkeypatch, caplog):
    tmp, names, rmtree = root / "tmp", root / "names", shutil.rmtree
    (tmp / "loop").symlink_to(tmp / "loop")
    (tmp / "link").symlink_to(tmp_path)
    (tmp / "old").mkdir()
    (tmp / "mount").mkdir()
    (names / ".main.0").touch()
    (names / "loop").symlink_to(names / "loop")

    def busy(path, *, ignore_errors=False):
        if path.name == "mount" and not ignore_errors:
            raise OSError(errno.EBUSY, "Device or resource busy")
        if path.name != "mount":
            rmtree(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", busy)
    add(name="main")
    assert sorted(record.message for record in caplog.records) == [
        f"{tmp}/link is not farm's and stays: Not a directory; remove it by hand",
        f"{tmp}/loop is not farm's and stays: Not a directory; remove it by hand",
        f"{tmp}/mount is of no use and stays: Device or resource busy; remove it by hand",
    ]
    assert sorted(each.name for each in tmp.iterdir()) == ["link", "loop", "mount"]
    assert sorted(each.name for each in names.iterdir()) == ["loop", "main"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="opening the bundle library"):
        BundleLibrary(tmp_path / "file" / "bundles")


def change_until_killed(root, verb, folder, steps):
    """SIGKILL to this process just before the step after so many that change the disk."""
    left = steps
    library = BundleLibrary(root)

    def counted(real):
        def step(*args, **kwargs):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return step

    for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "fchmod", "chmod"):
        setattr(os, name, counted(getattr(os, name)))
    if verb == "add":
        library.add(folder, name="main", compile_golden=golden)
    else:
        library.remove("main")


STRIDE = 3  # of the steps; all of them (STRIDE = 1) take three times as long and were clean too


def finishes(root, verb, folder, steps):
    """Whether the child finished. It is forked: a new interpreter for each step would take most of the time."""
    child = get_context("fork").Process(target=change_until_killed, args=(root, verb, folder, steps))
    child.start()
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode == 0


@pytest.mark.parametrize(("verb", "at_least"), [("add", 8), ("remove", 3)])
def test_killed_at_any_step_the_library_is_as_before_or_as_after_and_usable_at_once(tmp_path, android, verb, at_least):
    for killed in range(1000):
        root = tmp_path / f"lib{killed}"
        library = BundleLibrary(root)
        if verb == "remove":
            library.add(android, name="main", compile_golden=golden)
        if finishes(root, verb, android, killed * STRIDE):
            break
        library = BundleLibrary(root)
        assert library.verify() == ()
        for bundle in library.list():
            assert {path.name for path in bundle.path.iterdir()} == {file.name for file in bundle.files}
            if verb == "remove":
                library.remove(bundle.hash)
                assert library.list() == ()
        assert library.add(android, name="main", compile_golden=golden).names == ("main",)
        assert list((root / "tmp").iterdir()) == []
    assert killed >= at_least
