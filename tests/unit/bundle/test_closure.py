from dataclasses import replace

import pytest

from farm.bundle.closure import identify
from farm.bundle.elf import parse_elf
from farm.bundle.folder import read_folder
from farm.bundle.model import MAX_FINDINGS_IN_ERROR, Abi, ElfError, Platform
from farm.bundle.versions import FFI_PACKAGE, TVM_PACKAGE, TvmVersions, known_builds
from farm.common.errors import Code, HostError, UserError
from tests.support.errors import raises_code
from tests.unit.bundle.elves import (
    ANDROID_BUNDLE,
    ARM,
    I386,
    LD_LINUX,
    LINKER64,
    LINUX_BUNDLE,
    MIPS,
    OPENCL,
    OWN_LOADER_BUNDLE,
    RANDOM,
    RISCV,
    X86_64,
    Elf,
    write_folder,
)


def inspected(folder, files):
    return read_folder(write_folder(folder, files))


def refusal(inspection):
    with raises_code(Code.BAD_BUNDLE) as caught:
        inspection.accepted("here")
    return caught.value


@pytest.mark.parametrize(
    ("elf", "abi", "platform"),
    [
        (Elf(interpreter=LINKER64), Abi.ARM64, Platform.ANDROID),
        (Elf(interpreter="/apex/com.android.runtime/bin/linker64"), Abi.ARM64, Platform.ANDROID),
        (Elf(ARM, 32, interpreter="/system/bin/linker"), Abi.ARMV7, Platform.ANDROID),
        (Elf(I386, 32, needed=("libc.so",)), Abi.X86, Platform.ANDROID),
        (Elf(X86_64, interpreter=LD_LINUX), Abi.X86_64, Platform.LINUX),
        (Elf(interpreter="/lib/ld-linux-aarch64.so.1"), Abi.ARM64, Platform.LINUX),
        (Elf(X86_64, needed=("libm.so.6",)), Abi.X86_64, Platform.LINUX),
        (Elf(RISCV, android_api=35), Abi.RISCV64, Platform.ANDROID),
        (Elf(X86_64), Abi.X86_64, None),
    ],
)
def test_abi_and_platform(elf, abi, platform):
    assert identify(parse_elf(elf.to_bytes()), "file") == (abi, platform)


@pytest.mark.parametrize(
    ("elf", "said"),
    [
        (Elf(MIPS, 32), "MIPS"),
        (Elf(4711), "machine 4711"),
        (Elf(X86_64, 32), r"X86_64 \(32-bit\)"),
        (Elf(little=False), "big-endian"),
        (Elf(type=1), "an object file"),
        (Elf(type=77), "ELF file of type 77"),
        (Elf(X86_64, interpreter="/lib/ld-musl-x86_64.so.1"), "ld-musl"),
        (Elf(needed=("libc.so", "libm.so.6")), "both"),
    ],
)
def test_foreign_files_are_refused_by_name(elf, said):
    with pytest.raises(ElfError, match=said) as caught:
        identify(parse_elf(elf.to_bytes()), "libodd.so")
    assert caught.value.message.startswith("libodd.so")
    assert caught.value.hint


def test_a_full_android_bundle_passes_without_a_word(tmp_path):
    inspection = inspected(tmp_path, ANDROID_BUNDLE)
    assert inspection.accepted("here") == (Abi.ARM64, Platform.ANDROID)
    assert inspection.findings == ()
    assert inspection.has_opencl
    assert inspection.has_random_fill
    assert {file.name: file.mode for file in inspection.files}["tvm_rpc"] == 0o755
    assert {file.mode for file in inspection.files if file.name != "tvm_rpc"} == {0o644}


def test_a_full_linux_bundle_passes_without_a_word(tmp_path):
    inspection = inspected(tmp_path, LINUX_BUNDLE)
    assert inspection.accepted("here") == (Abi.X86_64, Platform.LINUX)
    assert inspection.findings == ()
    assert not inspection.has_opencl


@pytest.mark.parametrize("gone", [name for name in ANDROID_BUNDLE if name != "tvm_rpc"])
def test_each_missing_library_is_named_with_who_needs_it(tmp_path, gone):
    files = {name: elf for name, elf in ANDROID_BUNDLE.items() if name != gone}
    error = refusal(inspected(tmp_path, files))
    assert gone in error.message
    users = [name for name, elf in files.items() if gone in elf.needed]
    assert all(user in error.message for user in users)
    if gone.startswith("libtvm"):
        assert "<tvm>/build/lib" in error.hint
    else:
        assert "sysroot/usr/lib/aarch64-linux-android/libc++_shared.so" in error.hint


def test_several_missing_libraries_are_one_line_and_a_list(tmp_path):
    error = refusal(inspected(tmp_path, {"tvm_rpc": ANDROID_BUNDLE["tvm_rpc"]}))
    assert "\n" not in error.message
    assert "(and 2 more" in error.message
    assert len(error.evidence.splitlines()) == 2
    told = (error.message, *error.evidence.splitlines())
    for line, file in zip(
        told, ("libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_runtime_opencl.so"), strict=True
    ):
        assert f"{file} is missing" in line


def test_a_library_under_another_file_name_is_to_be_renamed(tmp_path):
    files = {name.replace("libtvm_ffi.so", "libtvm_ffi.so.0"): elf for name, elf in ANDROID_BUNDLE.items()}
    error = refusal(inspected(tmp_path, files))
    assert "rename libtvm_ffi.so.0 to libtvm_ffi.so" in error.hint


def test_a_file_of_another_abi_is_refused_by_name(tmp_path):
    files = ANDROID_BUNDLE | {"libtvm_ffi.so": replace(ANDROID_BUNDLE["libtvm_ffi.so"], machine=X86_64)}
    error = refusal(inspected(tmp_path, files))
    assert "libtvm_ffi.so is built for x86_64, but tvm_rpc is for arm64-v8a" in error.message


def test_a_host_library_among_android_ones_is_refused_by_name(tmp_path):
    files = ANDROID_BUNDLE | {"libtvm_ffi.so": Elf(needed=("libc.so.6",))}
    assert (
        "libtvm_ffi.so is built for linux-glibc, but tvm_rpc is for android"
        in refusal(inspected(tmp_path, files)).message
    )


def test_without_tvm_rpc_that_is_the_first_thing_said(tmp_path):
    files = {"libtvm_runtime.so": Elf(MIPS, 32)}
    error = refusal(inspected(tmp_path, files))
    assert "there is no tvm_rpc in it" in error.message
    assert "USE_CPP_RPC=ON" in error.hint


def test_an_empty_folder_has_no_tvm_rpc(tmp_path):
    assert "there is no tvm_rpc in it" in refusal(inspected(tmp_path, {})).message


def test_a_library_called_tvm_rpc_is_no_server(tmp_path):
    error = refusal(inspected(tmp_path, ANDROID_BUNDLE | {"tvm_rpc": Elf(needed=("libc.so",))}))
    assert "tvm_rpc is a shared library" in error.message


def test_a_text_called_so_is_refused(tmp_path):
    write_folder(tmp_path, ANDROID_BUNDLE)
    (tmp_path / "libtvm_ffi.so").write_text("INPUT(libtvm_ffi.so.1)")
    assert "libtvm_ffi.so is not an ELF file" in refusal(read_folder(tmp_path)).message


def test_a_truncated_library_is_refused(tmp_path):
    write_folder(tmp_path, ANDROID_BUNDLE)
    library = tmp_path / "libtvm_ffi.so"
    library.write_bytes(library.read_bytes()[:-10])
    assert "libtvm_ffi.so is a damaged ELF file: truncated" in refusal(read_folder(tmp_path)).message


class TestScripts:
    def script(self, folder, description=""):
        folder.mkdir(exist_ok=True)
        (folder / "tvm_rpc").write_text("#!/usr/bin/python3\nimport tvm\n")
        if description:
            (folder / "bundle.toml").write_text(description)
        return folder

    def test_needs_a_stated_abi(self, tmp_path):
        error = refusal(read_folder(self.script(tmp_path)))
        assert "whose ABI cannot be read" in error.message
        assert "bundle.toml" in error.hint

    def test_with_a_stated_abi_passes(self, tmp_path):
        folder = read_folder(
            self.script(tmp_path, 'abi = "x86_64"\nplatform = "linux-glibc"\ntvm_version = "0.27.0"\n')
        )
        assert folder.accepted("here") == (Abi.X86_64, Platform.LINUX)
        assert folder.versions == TvmVersions("0.27.0", "")
        assert [file.name for file in folder.files] == ["tvm_rpc"]
        assert folder.files[0].mode == 0o755

    def test_its_libraries_must_fit_what_is_stated(self, tmp_path):
        self.script(tmp_path, 'abi = "x86_64"\nplatform = "linux-glibc"\n')
        write_folder(tmp_path, {"libtvm_ffi.so": Elf(needed=("libc.so",))})
        error = refusal(read_folder(tmp_path))
        assert "libtvm_ffi.so is built for arm64-v8a, but bundle.toml says x86_64" in error.message

    @pytest.mark.parametrize(
        ("text", "said", "hint"),
        [
            ("abi = 'arm64'", "abi = 'arm64' is unknown", "did you mean arm64-v8a?"),
            ("platfrom = 'android'", "unknown key 'platfrom'", "did you mean platform?"),
            ("abi = 5", "abi must be a string", ""),
            ("abi = ", "is not TOML", ""),
        ],
    )
    def test_a_wrong_description_is_said_in_one_line(self, tmp_path, text, said, hint):
        with pytest.raises(UserError) as caught:
            read_folder(self.script(tmp_path, text))
        assert said in caught.value.message
        assert hint in caught.value.hint
        assert "\n" not in caught.value.message


class TestWarnings:
    def warned(self, folder, files):
        inspection = inspected(folder, files)
        inspection.accepted("here")
        return {finding.file: finding.message for finding in inspection.warnings}

    def without(self, library):
        files = {name: elf for name, elf in ANDROID_BUNDLE.items() if name != library}
        server = files["tvm_rpc"]
        return files | {"tvm_rpc": replace(server, needed=tuple(name for name in server.needed if name != library))}

    def test_no_random_fill(self, tmp_path):
        assert (
            "tuning needs it"
            in self.warned(tmp_path, self.without("libtvm_runtime_extra.so"))["libtvm_runtime_extra.so"]
        )

    def test_no_opencl(self, tmp_path):
        assert (
            "CPU work only"
            in self.warned(tmp_path, self.without("libtvm_runtime_opencl.so"))["libtvm_runtime_opencl.so"]
        )

    def test_an_old_single_runtime_has_it_all(self, tmp_path):
        one = Elf(needed=("libc.so",), payload=OPENCL + RANDOM)
        inspection = inspected(
            tmp_path, {"tvm_rpc": Elf(interpreter=LINKER64, needed=("libtvm_runtime.so",)), "libtvm_runtime.so": one}
        )
        assert inspection.findings == ()
        assert inspection.has_opencl

    def test_small_pages(self, tmp_path):
        files = ANDROID_BUNDLE | {"libtvm_ffi.so": replace(ANDROID_BUNDLE["libtvm_ffi.so"], align=4096)}
        assert "16 KiB pages" in self.warned(tmp_path, files)["libtvm_ffi.so"]

    def test_linked_against_opencl(self, tmp_path):
        opencl = ANDROID_BUNDLE["libtvm_runtime_opencl.so"]
        files = ANDROID_BUNDLE | {"libtvm_runtime_opencl.so": replace(opencl, needed=(*opencl.needed, "libOpenCL.so"))}
        assert "not every phone has" in self.warned(tmp_path, files)["libtvm_runtime_opencl.so"]

    def test_a_library_that_nothing_loads(self, tmp_path):
        server = replace(ANDROID_BUNDLE["tvm_rpc"], needed=("libtvm_runtime.so",))
        files = ANDROID_BUNDLE | {"tvm_rpc": server}
        assert "nothing loads it" in self.warned(tmp_path / "a", files)["libtvm_runtime_opencl.so"]
        opens = replace(server, payload=b"libtvm_runtime_opencl.so\0libtvm_runtime_extra.so\0")
        assert self.warned(tmp_path / "b", ANDROID_BUNDLE | {"tvm_rpc": opens}) == {}

    def test_each_with_its_own_cpp_library(self, tmp_path):
        files = {
            name: replace(elf, needed=tuple(lib for lib in elf.needed if lib != "libc++_shared.so"))
            for name, elf in ANDROID_BUNDLE.items()
            if name != "libc++_shared.so"
        }
        assert "their own C++ library" in self.warned(tmp_path, files)["libc++_shared.so"]

    def test_the_compiler_is_of_no_use(self, tmp_path):
        files = ANDROID_BUNDLE | {"libtvm_compiler.so": Elf(needed=("libtvm_runtime.so",))}
        assert "no use on a phone" in self.warned(tmp_path, files)["libtvm_compiler.so"]


class TestWhatNoBundleHolds:
    @pytest.mark.parametrize("name", ["bad name.so", "x;rm.so", "-rf", "naïve.so", "$HOME.so"])
    def test_names_that_need_quoting(self, tmp_path, name):
        (tmp_path / name).write_text("x")
        with raises_code(Code.BAD_BUNDLE, match="not safe on a phone"):
            read_folder(tmp_path)

    def test_folders_and_dead_links(self, tmp_path):
        (tmp_path / "lib").mkdir()
        (tmp_path / "libx.so").symlink_to("libx.so.1")
        with raises_code(Code.BAD_BUNDLE) as caught:
            read_folder(tmp_path)
        assert "lib is a folder" in caught.value.message
        assert caught.value.evidence.startswith("libx.so ")

    def test_of_many_the_first_few_are_told_whole(self, tmp_path):
        for index in range(100):
            (tmp_path / f"lib{index:02}").mkdir()
        with raises_code(Code.BAD_BUNDLE, match=r"lib00 is a folder \(and 99 more\)") as caught:
            read_folder(tmp_path)
        told = caught.value.evidence.splitlines()
        assert (len(told), told[0].partition(";")[0]) == (MAX_FINDINGS_IN_ERROR, "lib01 is a folder")

    def test_links_to_files_are_followed(self, tmp_path):
        write_folder(tmp_path / "build", ANDROID_BUNDLE)
        (tmp_path / "folder").mkdir()
        for name in ANDROID_BUNDLE:
            (tmp_path / "folder" / name).symlink_to(tmp_path / "build" / name)
        assert read_folder(tmp_path / "folder").findings == ()

    def test_a_whole_build_tree(self, tmp_path):
        for index in range(257):
            (tmp_path / f"f{index}").touch()
        with pytest.raises(UserError, match="257 files"):
            read_folder(tmp_path)

    def test_no_folder(self, tmp_path):
        with pytest.raises(UserError, match="there is no folder"):
            read_folder(tmp_path / "nowhere")
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="is not a folder"):
            read_folder(tmp_path / "file")


def test_a_folder_that_cannot_be_looked_at_is_no_bug(tmp_path):
    """As one below a home that the daemon's user may not enter."""
    with pytest.raises(HostError, match="File name too long") as caught:
        read_folder(tmp_path / ("x" * 300))
    assert "the user that the daemon runs as" in caught.value.hint


class TestOwnLoader:
    """A bundle with the loader and C library of glibc in it serves the phones that bundle.toml names."""

    def inspected(self, folder, files, platform="android"):
        write_folder(folder, files)
        (folder / "bundle.toml").write_text(f'platform = "{platform}"\n')
        return read_folder(folder)

    @pytest.mark.parametrize("platform", [*Platform])
    def test_serves_either_platform(self, tmp_path, platform):
        inspection = self.inspected(tmp_path, OWN_LOADER_BUNDLE, platform)
        assert inspection.accepted("folder") == (Abi.ARM64, platform)
        assert {file.name: file.mode for file in inspection.files}["ld-linux-aarch64.so.1"] == 0o755

    def test_needs_nothing_of_the_phone(self, tmp_path):
        files = {name: elf for name, elf in OWN_LOADER_BUNDLE.items() if name != "libc.so.6"}
        assert "libc.so.6 is missing" in refusal(self.inspected(tmp_path, files)).message

    def test_takes_no_library_of_android(self, tmp_path):
        files = OWN_LOADER_BUNDLE | {"libtvm_runtime.so": Elf(needed=("libc.so",), android_api=28)}
        assert "libtvm_runtime.so is built for android" in refusal(self.inspected(tmp_path, files)).message

    def test_says_that_it_is_for_cpus_only(self, tmp_path):
        [warning] = self.inspected(tmp_path, OWN_LOADER_BUNDLE).warnings
        assert "CPU work only" in warning.message


class TestVersions:
    """Libraries say by their build ids which wheel they are from; bundle.toml says it for all others."""

    def build(self, package, *, other_than=""):
        return next(
            (bytes.fromhex(build_id), each)
            for build_id, each in known_builds().items()
            if each.package == package and other_than not in each.versions
        )

    def bundle(self, **build_ids):
        names = {f"libtvm_{name}.so": build_id for name, build_id in build_ids.items()}
        return ANDROID_BUNDLE | {
            name: replace(ANDROID_BUNDLE[name], build_id=build_id) for name, build_id in names.items()
        }

    def test_the_libraries_say_it(self, tmp_path):
        (tvm_id, tvm), (ffi_id, ffi) = self.build(TVM_PACKAGE), self.build(FFI_PACKAGE)
        found = inspected(tmp_path, self.bundle(runtime=tvm_id, ffi=ffi_id))
        assert found.versions == TvmVersions(tvm.versions[-1], ffi.versions[-1])
        assert not found.refusals

    def test_bundle_toml_says_which_of_several_with_the_same_library(self, tmp_path):
        build_id, build = next((each, known) for each, known in known_builds().items() if len(known.versions) > 1)
        part = "tvm" if build.package == TVM_PACKAGE else "ffi"
        (tmp_path / "bundle.toml").write_text(f'{part}_version = "{build.versions[0]}"\n')
        found = inspected(tmp_path, self.bundle(**{build.library[7:-3]: bytes.fromhex(build_id)}))
        assert getattr(found.versions, part) == build.versions[0]
        assert not found.refusals

    def test_bundle_toml_says_what_they_do_not(self, tmp_path):
        tvm_id, tvm = self.build(TVM_PACKAGE)
        (tmp_path / "bundle.toml").write_text('ffi_version = "0.9"\n')
        found = inspected(tmp_path, self.bundle(runtime=tvm_id))
        assert found.versions == TvmVersions(tvm.versions[-1], "0.9")

    def test_nothing_says_it(self, tmp_path):
        assert inspected(tmp_path, ANDROID_BUNDLE).versions == TvmVersions()

    def test_bundle_toml_that_says_otherwise_is_refused(self, tmp_path):
        tvm_id, tvm = self.build(TVM_PACKAGE)
        (tmp_path / "bundle.toml").write_text('tvm_version = "0.9"\n')
        message = refusal(inspected(tmp_path, self.bundle(runtime=tvm_id))).message
        assert f"libtvm_runtime.so is of apache-tvm {tvm.versions[-1]}, tvm_version in bundle.toml is 0.9" in message

    def test_libraries_of_two_releases_are_refused(self, tmp_path):
        tvm_id, tvm = self.build(TVM_PACKAGE)
        other_id, other = self.build(TVM_PACKAGE, other_than=tvm.versions[-1])
        message = refusal(inspected(tmp_path, self.bundle(runtime=tvm_id, runtime_extra=other_id))).message
        assert f"apache-tvm {tvm.versions[-1]}, libtvm_runtime_extra.so is {other.versions[-1]}" in message
