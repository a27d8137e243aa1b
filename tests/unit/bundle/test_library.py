import errno
import json
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from farm.bundle import library as library_module
from farm.bundle.library import BundleLibrary, NoSuchBundleError
from farm.bundle.model import GOLDEN_FORMAT, GOLDEN_INDEX, Abi, Platform
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
def library(tmp_path):
    return BundleLibrary(tmp_path / "bundles")


@pytest.fixture
def android(tmp_path):
    return write_folder(tmp_path / "android", ANDROID_BUNDLE)


@pytest.fixture
def linux(tmp_path):
    return write_folder(tmp_path / "linux", LINUX_BUNDLE)


def tree(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


class TestAdd:
    def test_tells_all_about_a_bundle(self, library, android):
        steps = []
        bundle = library.add(android, name="main", toolchain="tvm-0.27", compile_golden=golden, progress=steps.append)
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
            assert stored.stat().st_mode & 0o777 == file.mode
            assert stored.stat().st_size == file.size
        assert bundle.size_bytes == sum((android / name).stat().st_size for name in ANDROID_BUNDLE)
        assert bundle.golden_kinds == ("cpu", "opencl")
        assert (bundle.golden_dir / "cpu.so").is_file()
        assert steps[-1] == "compiling golden kernels (cpu, opencl) for arm64-v8a"
        assert library.verify() == ()
        assert library.list() == (bundle,)

    def test_without_opencl_only_cpu_kernels_are_wanted(self, library, linux):
        bundle = library.add(linux, name="virtual", compile_golden=golden)
        assert bundle.golden_kinds == ("cpu",)
        assert (bundle.abi, bundle.platform, bundle.has_opencl) == (Abi.X86_64, Platform.LINUX, False)

    def test_the_same_again_is_the_same_bundle_under_one_more_name(self, library, android):
        first = library.add(android, name="main", compile_golden=golden)

        def never(*_):
            raise AssertionError("compiled twice")

        os.utime(android / "tvm_rpc")
        (android / "libtvm_ffi.so").chmod(0o600)
        second = library.add(android, name="stable", compile_golden=never)
        assert second.hash == first.hash
        assert second.names == ("main", "stable")
        assert len(library.list()) == 1

    def test_other_bytes_or_another_toolchain_are_another_bundle(self, library, android):
        first = library.add(android, name="a", compile_golden=golden)
        second = library.add(android, name="b", toolchain="other", compile_golden=golden)
        (android / "libtvm_ffi.so").write_bytes((android / "libtvm_ffi.so").read_bytes() + b"new")
        third = library.add(android, name="a", compile_golden=golden)
        assert len({first.hash, second.hash, third.hash}) == 3
        assert library.get("a").hash == third.hash
        assert library.get(first.hash).names == ()

    def test_hash_does_not_depend_on_where_and_when(self, tmp_path, android):
        hashes = {
            BundleLibrary(tmp_path / place).add(android, name=place, compile_golden=golden).hash for place in ("x", "y")
        }
        assert len(hashes) == 1

    def test_a_plain_file_in_the_folder_for_parts_is_left_alone(self, library, android, tmp_path):
        library.add(android, name="one", compile_golden=golden)
        file = tmp_path / "bundles/tmp/junk"
        file.touch()
        (android / "notes").write_text("another")
        assert library.add(android, name="two", compile_golden=golden).name == "two"
        assert file.exists()

    def test_the_bundle_named_last_is_wanted_though_the_clock_was_once_ahead(self, library, android, tmp_path):
        old = library.add(android, name="old", compile_golden=golden)
        ahead_s = time.time() + 3e7
        os.utime(tmp_path / "bundles/names/old", (ahead_s, ahead_s))
        (android / "notes").write_text("another")
        new = library.add(android, name="new", compile_golden=golden)
        assert library.for_abi(old.abi) == new

    def test_a_folder_in_place_of_a_name_is_refused_before_anything_is_kept(self, library, android, tmp_path):
        library.list()
        (tmp_path / "bundles/names/taken").mkdir(parents=True)
        with pytest.raises(HostError, match="names/taken must be a file, and is a folder"):
            library.add(android, name="taken", compile_golden=golden)
        assert library.list() == ()

    def test_a_refused_folder_leaves_nothing(self, library, android, tmp_path):
        (android / "libtvm_ffi.so").unlink()
        before = tree(tmp_path / "bundles")
        with raises_code(Code.BAD_BUNDLE, match=r"libtvm_ffi\.so is missing: it is needed by libtvm_runtime\.so"):
            library.add(android, name="main", compile_golden=golden)
        assert tree(tmp_path / "bundles") == before

    def test_a_failing_toolchain_leaves_nothing(self, library, android, tmp_path):
        def failing(_abi, _platform, _kinds, out):
            (out / "half").write_text("")
            raise HostError("no linker", hint="install lld")

        with pytest.raises(HostError, match="no linker"):
            library.add(android, name="main", compile_golden=failing)
        assert library.list() == ()
        assert list((tmp_path / "bundles" / "tmp").iterdir()) == []

    def test_a_toolchain_that_forgets_a_file_is_refused(self, library, android):
        def forgetful(abi, platform, kinds, out):
            golden(abi, platform, kinds, out)
            (out / "opencl.npz").unlink()

        with pytest.raises(HostError, match=r"lack opencl\.npz"):
            library.add(android, name="main", compile_golden=forgetful)
        assert library.list() == ()

    def test_files_swapped_while_copying_are_judged_as_copied(self, library, android):
        def rebuild(step):
            if step == "copying libtvm_runtime.so":
                Elf(needed=("libnew.so",)).write(android / "libtvm_runtime.so")

        with raises_code(Code.BAD_BUNDLE, match=r"libnew\.so is missing"):
            library.add(android, name="main", compile_golden=golden, progress=rebuild)
        assert library.list() == ()

    @pytest.mark.parametrize("name", ["", "Main", "a b", "../x", "-x", "x" * 65, ".hidden", "ä"])
    def test_names_are_plain(self, library, android, name):
        with pytest.raises(UserError, match="cannot be a bundle's name"):
            library.add(android, name=name, compile_golden=golden)

    def test_two_at_once_both_arrive(self, library, android, linux):
        both_compile = threading.Barrier(2, timeout=HANG_S)

        def slow(abi, platform, kinds, out):
            both_compile.wait()
            golden(abi, platform, kinds, out)

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


class TestFind:
    def test_by_name_hash_and_prefix(self, library, android):
        bundle = library.add(android, name="main", compile_golden=golden)
        for key in ("main", bundle.hash, bundle.hash[:8], bundle.short_hash):
            assert library.get(key) == bundle

    def test_unknown_names_the_nearest(self, library, android):
        with pytest.raises(NoSuchBundleError) as nothing:
            library.get("main")
        assert "farm bundle build" in nothing.value.hint
        library.add(android, name="main", compile_golden=golden)
        with pytest.raises(NoSuchBundleError) as typo:
            library.get("mian")
        assert typo.value.hint == "did you mean main?"
        with pytest.raises(NoSuchBundleError) as far:
            library.get("zzzzzz")
        assert far.value.hint == "there are: main"

    def test_an_ambiguous_prefix_lists_them(self, library, android, monkeypatch):
        first = library.add(android, name="main", compile_golden=golden)
        twin = first.path.parent.with_name(first.hash[:-1] + ("0" if first.hash[-1] != "0" else "1"))
        twin.mkdir()
        with pytest.raises(NoSuchBundleError, match="may be any of 2"):
            library.get(first.hash[:10])

    def test_for_abi_takes_what_was_named_last(self, library, android, linux):
        old = library.add(android, name="a", compile_golden=golden)
        new = library.add(android, name="b", toolchain="newer", compile_golden=golden)
        virtual = library.add(linux, name="v", compile_golden=golden)
        assert library.for_abi("arm64-v8a") == new
        library.add(android, name="a", compile_golden=golden)
        os.utime(library._names / "a", ns=(2**62, 2**62))
        assert library.for_abi("arm64-v8a") == old
        assert library.for_abi("x86_64") == virtual
        assert library.for_abi("x86_64", Platform.ANDROID) is None
        assert library.for_abi("riscv64") is None


class TestRemove:
    def test_name_by_name(self, library, android):
        library.add(android, name="a", compile_golden=golden)
        bundle = library.add(android, name="b", compile_golden=golden)
        assert library.remove("a") == (("a",), False)
        assert library.get(bundle.hash).names == ("b",)
        assert library.remove("b") == (("b",), True)
        assert library.list() == ()
        assert not bundle.path.exists()

    def test_by_hash_takes_all_names(self, library, android):
        library.add(android, name="a", compile_golden=golden)
        bundle = library.add(android, name="b", compile_golden=golden)
        assert set(library.remove(bundle.short_hash)[0]) == {"a", "b"}
        assert library.list() == ()

    def test_not_while_in_use(self, library, android):
        bundle = library.add(android, name="a", compile_golden=golden)
        with raises_code(Code.BUNDLE_IN_USE, match="bundle a is in use: on pixel-7"):
            library.remove("a", in_use=lambda asked: "on pixel-7" if asked.hash == bundle.hash else "")
        assert library.get("a") == bundle
        library.add(android, name="b", compile_golden=golden)
        assert library.remove("b", in_use=lambda _asked: "on pixel-7") == (("b",), False)

    def test_a_damaged_one_can_go(self, library, android):
        bundle = library.add(android, name="a", compile_golden=golden)
        (bundle.path.parent / "manifest.json").write_text("{")
        assert library.remove("a") == (("a",), True)
        assert library.verify() == ()


class TestVerify:
    @pytest.mark.parametrize(
        ("break_it", "file", "problem"),
        [
            (lambda place: (place / "files/tvm_rpc").unlink(), "files/tvm_rpc", "is missing"),
            (lambda place: flip(place / "files/tvm_rpc"), "files/tvm_rpc", "has other content"),
            (lambda place: flip(place / "golden/cpu.npz"), "golden/cpu.npz", "has other content"),
            (lambda place: (place / "files/x").touch(), "files/x", "does not belong there"),
            (lambda place: os.truncate(place / "files/tvm_rpc", 3), "files/tvm_rpc", "has 3 bytes instead of"),
            (lambda place: (place / "manifest.json").unlink(), "manifest.json", "is missing"),
            (lambda place: (place / "manifest.json").write_text("{"), "manifest.json", "is unreadable"),
            (
                lambda place: replace_in(place / "manifest.json", '"arm64-v8a"', '"x86_64"'),
                "manifest.json",
                "its hash is another one",
            ),
            (
                lambda place: replace_in(place / "manifest.json", '"format": 1', '"format": 2'),
                "manifest.json",
                "has format 2",
            ),
        ],
    )
    def test_names_what_differs_and_adding_again_repairs(self, library, android, break_it, file, problem):
        bundle = library.add(android, name="a", compile_golden=golden)
        break_it(bundle.path.parent)
        damages = library.verify("a")
        (damage,) = damages
        assert damage.startswith(f"{file}: ")
        assert problem in damage
        assert library.verify() == damages
        repaired = library.add(android, name="a", compile_golden=golden)
        assert repaired.hash == bundle.hash
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
        self, library, android, linux, break_it, damage
    ):
        broken = library.add(android, name="a", compile_golden=golden)
        whole = library.add(linux, name="b", compile_golden=golden)
        break_it(broken.path.parent / "manifest.json")
        first, second = library.list()
        assert first == whole
        assert (second.name, second.names, second.hash, second.abi) == ("a", ("a",), broken.hash, "")
        assert damage in second.damage
        assert library.for_abi("", None) is None
        with pytest.raises(HostError, match=damage):
            library.get("a")
        assert library.remove("a") == (("a",), True)
        assert library.list() == (whole,)

    @pytest.mark.parametrize(
        "leave",
        [
            lambda root: (root / "names" / "x").mkdir(),
            lambda root: (root / "names" / "x").write_bytes(b"\xff\xfe"),
            lambda root: (root / "objects" / ("0" * 64)).write_text("no folder"),
        ],
        ids=["a folder as a name", "a name that is no text", "a file as a bundle"],
    )
    def test_what_others_left_in_the_library_hides_no_bundle(self, library, android, tmp_path, leave):
        bundle = library.add(android, name="a", compile_golden=golden)
        leave(bundle.path.parents[2])
        assert library.list() == (bundle,)
        assert library.get("a") == bundle
        assert library.verify() == ()


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


def replace_in(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class TestDisk:
    def test_full_while_copying_is_said_and_leaves_nothing(self, library, android, tmp_path, monkeypatch):
        def full(_source, _target, _mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(library_module, "copy_hashed", full)
        with pytest.raises(HostError, match="adding bundle main failed: No space left on device") as caught:
            library.add(android, name="main", compile_golden=golden)
        assert "free some room" in caught.value.hint
        assert list((tmp_path / "bundles" / "tmp").iterdir()) == []
        assert library.list() == ()

    @pytest.mark.parametrize("fails", ["write_bytes", "mkdir"])
    def test_full_at_the_last_step_changes_nothing(self, library, android, tmp_path, monkeypatch, fails):
        """An add cannot write the name; a removal has no room for the folder that it moves through."""
        names, real = tmp_path / "bundles" / "names", getattr(Path, fails)
        if fails == "mkdir":
            library.add(android, name="main", compile_golden=golden)
        before = library.list()

        def full(path, *args, **options):
            if fails == "mkdir" or path.parent == names:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *args, **options)

        monkeypatch.setattr(Path, fails, full)
        with pytest.raises(HostError, match="main failed: No space left on device"):
            library.remove("main") if before else library.add(android, name="main", compile_golden=golden)
        monkeypatch.undo()
        assert library.list() == before
        assert [each.name for each in names.iterdir()] == [name for each in before for name in each.names]

    def test_what_is_left_in_the_temporary_folder_fails_no_add(self, library, android, tmp_path, monkeypatch, caplog):
        tmp, names, rmtree = tmp_path / "bundles" / "tmp", tmp_path / "bundles" / "names", shutil.rmtree
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
        library.add(android, name="main", compile_golden=golden)
        assert sorted(record.message for record in caplog.records) == [
            f"{tmp}/link is not farm's and stays: Not a directory; remove it by hand",
            f"{tmp}/loop is not farm's and stays: Not a directory; remove it by hand",
            f"{tmp}/mount is of no use and stays: Device or resource busy; remove it by hand",
        ]
        assert sorted(each.name for each in tmp.iterdir()) == ["link", "loop", "mount"]
        assert sorted(each.name for each in names.iterdir()) == ["loop", "main"]

    def test_a_place_that_cannot_be_written(self, tmp_path):
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


class TestKilled:
    """SIGKILL at every step of `add` and `remove`: the library is as before or as after, and usable at once."""

    STRIDE = 3  # of the steps; all of them (STRIDE = 1) take three times as long and were clean too

    def run_child(self, root, verb, folder, steps):
        """Whether the child finished. It is forked: a new interpreter for each step would take most of the time."""
        child = get_context("fork").Process(target=change_until_killed, args=(root, verb, folder, steps))
        child.start()
        child.join(60)
        assert child.exitcode in (0, -signal.SIGKILL)
        return child.exitcode == 0

    def test_while_adding(self, tmp_path, android):
        steps, killed = 0, 0
        while True:
            root = tmp_path / f"lib{steps}"
            if self.run_child(root, "add", android, steps):
                break
            killed += 1
            library = BundleLibrary(root)
            assert library.verify() == ()
            assert all(self.whole(bundle) for bundle in library.list())
            assert library.add(android, name="main", compile_golden=golden).names == ("main",)
            assert list((root / "tmp").iterdir()) == []
            steps += self.STRIDE
        assert killed >= 8

    def test_while_removing(self, tmp_path, android):
        steps, killed = 0, 0
        while True:
            root = tmp_path / f"lib{steps}"
            library = BundleLibrary(root)
            hash_ = library.add(android, name="main", compile_golden=golden).hash
            if self.run_child(root, "remove", android, steps):
                break
            killed += 1
            assert library.verify() == ()
            assert all(self.whole(bundle) for bundle in library.list())
            if library.list():
                library.remove(hash_)
            assert library.list() == ()
            library.add(android, name="main", compile_golden=golden)
            assert list((root / "tmp").iterdir()) == []
            steps += self.STRIDE
        assert killed >= 3

    @staticmethod
    def whole(bundle):
        return {path.name for path in bundle.path.iterdir()} == {file.name for file in bundle.files}


def test_bundle_is_a_value(library, android):
    bundle = library.add(android, name="main", compile_golden=golden)
    assert replace(bundle, name="x") != bundle
    assert hash(bundle) == hash(library.get("main"))
