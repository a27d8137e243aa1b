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


@pytest.fixture
def inspected(tmp_path):
    """What is found in a folder of these files, with a bundle.toml of these keys."""

    def inspect(files, **description):
        write_folder(tmp_path, files)
        if description:
            (tmp_path / "bundle.toml").write_text("".join(f'{key} = "{said}"\n' for key, said in description.items()))
        return read_folder(tmp_path)

    return inspect


def refusal(inspection):
    with raises_code(Code.BAD_BUNDLE) as caught:
        inspection.accepted("here")
    return caught.value


def android(**changes):
    """A phone's bundle with libraries changed: libtvm_NAME.so gets these fields."""
    names = {name: f"libtvm_{name}.so" if name != "tvm_rpc" else name for name in changes}
    return ANDROID_BUNDLE | {names[name]: replace(ANDROID_BUNDLE[names[name]], **changes[name]) for name in changes}


@pytest.mark.parametrize(
    ("files", "abi", "platform", "opencl"),
    [(ANDROID_BUNDLE, Abi.ARM64, Platform.ANDROID, True), (LINUX_BUNDLE, Abi.X86_64, Platform.LINUX, False)],
)
def test_a_full_bundle_passes_without_a_word(inspected, files, abi, platform, opencl):
    found = inspected(files)
    assert found.accepted("here") == (abi, platform)
    assert found.findings == ()
    assert (found.has_opencl, found.has_random_fill) == (opencl, True)
    assert {file.name: file.mode for file in found.files} == {
        name: 0o755 if name == "tvm_rpc" else 0o644 for name in files
    }


@pytest.mark.parametrize("gone", [name for name in ANDROID_BUNDLE if name != "tvm_rpc"])
def test_each_missing_library_is_named_with_who_needs_it(inspected, gone):
    files = {name: elf for name, elf in ANDROID_BUNDLE.items() if name != gone}
    error = refusal(inspected(files))
    for name in (gone, *(name for name, elf in files.items() if gone in elf.needed)):
        assert name in error.message
    ndks = "sysroot/usr/lib/aarch64-linux-android/libc++_shared.so"
    assert ("<tvm>/build/lib" if gone.startswith("libtvm") else ndks) in error.hint


def test_several_missing_libraries_are_one_line_and_a_list(inspected):
    error = refusal(inspected({"tvm_rpc": ANDROID_BUNDLE["tvm_rpc"]}))
    assert "\n" not in error.message
    assert "(and 2 more" in error.message
    told = (error.message, *error.evidence.splitlines())
    for line, name in zip(told, ("runtime", "runtime_extra", "runtime_opencl"), strict=True):
        assert f"libtvm_{name}.so is missing" in line


@pytest.mark.parametrize(
    ("files", "said", "hint"),
    [
        (
            {name.replace("ffi.so", "ffi.so.0"): elf for name, elf in ANDROID_BUNDLE.items()},
            "libtvm_ffi.so is missing",
            "rename libtvm_ffi.so.0 to libtvm_ffi.so",
        ),
        (android(ffi={"machine": X86_64}), "libtvm_ffi.so is built for x86_64, but tvm_rpc is for arm64-v8a", ""),
        (
            ANDROID_BUNDLE | {"libtvm_ffi.so": Elf(needed=("libc.so.6",))},
            "libtvm_ffi.so is built for linux-glibc, but tvm_rpc is for android",
            "",
        ),
        ({"libtvm_runtime.so": Elf(MIPS, 32)}, "there is no tvm_rpc in it", "USE_CPP_RPC=ON"),
        ({}, "there is no tvm_rpc in it", "USE_CPP_RPC=ON"),
        (ANDROID_BUNDLE | {"tvm_rpc": Elf(needed=("libc.so",))}, "tvm_rpc is a shared library", ""),
    ],
)
def test_files_that_make_no_bundle_are_refused_by_name(inspected, files, said, hint):
    error = refusal(inspected(files))
    assert said in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"INPUT(libtvm_ffi.so.1)", "is not an ELF file"),
        (ANDROID_BUNDLE["libtvm_ffi.so"].to_bytes()[:-10], "is a damaged ELF file: truncated"),
    ],
)
def test_a_text_and_a_truncated_library_are_refused(inspected, tmp_path, content, said):
    inspected(ANDROID_BUNDLE)
    (tmp_path / "libtvm_ffi.so").write_bytes(content)
    assert f"libtvm_ffi.so {said}" in refusal(read_folder(tmp_path)).message


@pytest.fixture
def script(tmp_path):
    """A server that is a script: only bundle.toml can say what it is for."""
    (tmp_path / "tvm_rpc").write_text("#!/usr/bin/python3\nimport tvm\n")
    return tmp_path


def test_a_script_needs_a_stated_abi_which_its_libraries_must_fit(script, inspected):
    error = refusal(inspected({}))
    assert "whose ABI cannot be read" in error.message
    assert "bundle.toml" in error.hint
    found = inspected({}, abi="x86_64", platform="linux-glibc", tvm_version="0.27.0")
    assert found.accepted("here") == (Abi.X86_64, Platform.LINUX)
    assert found.versions == TvmVersions("0.27.0", "")
    assert [(file.name, file.mode) for file in found.files] == [("tvm_rpc", 0o755)]
    error = refusal(inspected({"libtvm_ffi.so": Elf(needed=("libc.so",))}))
    assert "libtvm_ffi.so is built for arm64-v8a, but bundle.toml says x86_64" in error.message


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("abi = 'arm64'", "abi = 'arm64' is unknown", "did you mean arm64-v8a?"),
        ("platfrom = 'android'", "unknown key 'platfrom'", "did you mean platform?"),
        ("abi = 5", "abi must be a string", ""),
        ("abi = ", "is not TOML", ""),
        ("abi = " + "[" * 30_000, "brackets in brackets", ""),
    ],
)
def test_a_wrong_description_is_said_in_one_line(script, text, said, hint):
    (script / "bundle.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_folder(script)
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


def without(library):
    """A phone's bundle without a library that its server needs."""
    needed = tuple(name for name in ANDROID_BUNDLE["tvm_rpc"].needed if name != library)
    return {name: elf for name, elf in android(tvm_rpc={"needed": needed}).items() if name != library}


OWN_CPP = {
    name: replace(elf, needed=tuple(each for each in elf.needed if each != "libc++_shared.so"))
    for name, elf in ANDROID_BUNDLE.items()
    if name != "libc++_shared.so"
}
WITH_OPENCL = {"needed": (*ANDROID_BUNDLE["libtvm_runtime_opencl.so"].needed, "libOpenCL.so")}


@pytest.mark.parametrize(
    ("files", "file", "said"),
    [
        (without("libtvm_runtime_extra.so"), "libtvm_runtime_extra.so", "tuning needs it"),
        (without("libtvm_runtime_opencl.so"), "libtvm_runtime_opencl.so", "CPU work only"),
        (android(ffi={"align": 4096}), "libtvm_ffi.so", "16 KiB pages"),
        (android(runtime_opencl=WITH_OPENCL), "libtvm_runtime_opencl.so", "not every phone has"),
        (android(tvm_rpc={"needed": ("libtvm_runtime.so",)}), "libtvm_runtime_opencl.so", "nothing loads it"),
        (OWN_CPP, "libc++_shared.so", "their own C++ library"),
        (
            ANDROID_BUNDLE | {"libtvm_compiler.so": Elf(needed=("libtvm_runtime.so",))},
            "libtvm_compiler.so",
            "no use on a phone",
        ),
    ],
)
def test_what_may_fail_later_is_a_warning(inspected, files, file, said):
    found = inspected(files)
    found.accepted("here")
    assert said in {warning.file: warning.message for warning in found.warnings}[file]


@pytest.mark.parametrize(
    "files",
    [
        {
            "tvm_rpc": Elf(interpreter=LINKER64, needed=("libtvm_runtime.so",)),
            "libtvm_runtime.so": Elf(needed=("libc.so",), payload=OPENCL + RANDOM),
        },
        android(
            tvm_rpc={
                "needed": ("libtvm_runtime.so",),
                "payload": b"libtvm_runtime_opencl.so\0libtvm_runtime_extra.so\0",
            }
        ),
    ],
    ids=["an old single runtime", "a server that opens libraries itself"],
)
def test_other_ways_to_have_it_all_pass_without_a_word(inspected, files):
    found = inspected(files)
    assert (found.findings, found.has_opencl) == ((), True)


@pytest.mark.parametrize("name", ["bad name.so", "x;rm.so", "-rf", "naïve.so", "$HOME.so"])
def test_names_that_need_quoting_are_refused(tmp_path, name):
    (tmp_path / name).write_text("x")
    with raises_code(Code.BAD_BUNDLE, match="not safe on a phone"):
        read_folder(tmp_path)


def test_folders_and_dead_links_are_refused_and_links_to_files_are_followed(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "libx.so").symlink_to("libx.so.1")
    with raises_code(Code.BAD_BUNDLE) as caught:
        read_folder(tmp_path)
    assert "lib is a folder" in caught.value.message
    assert caught.value.evidence.startswith("libx.so ")
    write_folder(tmp_path / "build", ANDROID_BUNDLE)
    (tmp_path / "folder").mkdir()
    for name in ANDROID_BUNDLE:
        (tmp_path / "folder" / name).symlink_to(tmp_path / "build" / name)
    assert read_folder(tmp_path / "folder").findings == ()


def test_of_many_findings_the_first_few_are_told_whole_and_a_build_tree_is_not_read(tmp_path):
    for index in range(100):
        (tmp_path / f"lib{index:02}").mkdir()
    with raises_code(Code.BAD_BUNDLE, match=r"lib00 is a folder \(and 99 more\)") as caught:
        read_folder(tmp_path)
    told = caught.value.evidence.splitlines()
    assert (len(told), told[0].partition(";")[0]) == (MAX_FINDINGS_IN_ERROR, "lib01 is a folder")
    for index in range(157):
        (tmp_path / f"f{index}").touch()
    with pytest.raises(UserError, match="257 files"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "fault", "said", "hint"),
    [
        ("nowhere", UserError, "there is no folder", ""),
        ("file", UserError, "is not a folder", ""),
        # As one below a home that the daemon's user may not enter.
        ("x" * 300, HostError, "File name too long", "check owner and mode"),
    ],
)
def test_what_is_no_folder_or_cannot_be_looked_at_is_told(tmp_path, name, fault, said, hint):
    (tmp_path / "file").touch()
    with pytest.raises(fault, match=said) as caught:
        read_folder(tmp_path / name)
    assert hint in caught.value.hint


@pytest.mark.parametrize("platform", [*Platform])
def test_a_bundle_with_glibcs_loader_in_it_serves_the_platform_that_bundle_toml_names(inspected, platform):
    found = inspected(OWN_LOADER_BUNDLE, platform=platform)
    assert found.accepted("folder") == (Abi.ARM64, platform)
    assert {file.name: file.mode for file in found.files}["ld-linux-aarch64.so.1"] == 0o755
    assert ["CPU work only" in each.message for each in found.warnings] == [True] * (platform is Platform.ANDROID)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"libc.so.6": None}, "libc.so.6 is missing"),  # it takes nothing of the phone
        (
            {"libtvm_runtime.so": Elf(needed=("libc.so",), android_api=28)},
            "libtvm_runtime.so is built for android",
        ),
    ],
)
def test_a_bundle_with_glibcs_loader_takes_nothing_of_android(inspected, changed, said):
    files = {name: elf for name, elf in (OWN_LOADER_BUNDLE | changed).items() if elf}
    assert said in refusal(inspected(files, platform="android")).message


def build(package, *, other_than=""):
    """The build id of a library of a wheel, and its newest release."""
    return next(
        (bytes.fromhex(build_id), each.versions[-1])
        for build_id, each in known_builds().items()
        if each.package == package and other_than not in each.versions
    )


def test_libraries_say_by_their_build_ids_which_wheel_they_are_from(inspected):
    (tvm_id, tvm), (ffi_id, ffi) = build(TVM_PACKAGE), build(FFI_PACKAGE)
    assert inspected(ANDROID_BUNDLE).versions == TvmVersions()
    found = inspected(android(runtime={"build_id": tvm_id}, ffi={"build_id": ffi_id}))
    assert (found.versions, found.refusals) == (TvmVersions(tvm, ffi), ())
    other_id, other = build(TVM_PACKAGE, other_than=tvm)
    message = refusal(inspected(android(runtime={"build_id": tvm_id}, runtime_extra={"build_id": other_id}))).message
    assert f"apache-tvm {tvm}, libtvm_runtime_extra.so is {other}" in message


def test_bundle_toml_says_which_of_several_releases_with_the_same_library(inspected):
    build_id, build = next((each, known) for each, known in known_builds().items() if len(known.versions) > 1)
    part = "tvm" if build.package == TVM_PACKAGE else "ffi"
    files = android(**{build.library[7:-3]: {"build_id": bytes.fromhex(build_id)}})
    found = inspected(files, **{f"{part}_version": build.versions[0]})
    assert (getattr(found.versions, part), found.refusals) == (build.versions[0], ())


def test_bundle_toml_says_what_libraries_do_not_and_nothing_else(inspected):
    tvm_id, tvm = build(TVM_PACKAGE)
    files = android(runtime={"build_id": tvm_id})
    assert inspected(files, ffi_version="0.9").versions == TvmVersions(tvm, "0.9")
    message = refusal(inspected(files, tvm_version="0.9")).message
    assert f"libtvm_runtime.so is of apache-tvm {tvm}, tvm_version in bundle.toml is 0.9" in message
