"""Runtime bundles: the folder with tvm_rpc and its libraries that a phone gets for its ABI.

`model` has the records: `Abi`, `Platform`, `ElfInfo`, `Inspection` with its findings, `BundleManifest`, `Bundle`. `elf`
reads one ELF file, `folder` a whole folder, and `closure` decides (pure) whether its files make a bundle. `golden` has
the kernels that prove a phone works, `library` keeps bundles by content hash, `storage` writes files whole or not at
all, and `rollout_rules` decides (pure) which bundle each phone gets.

`farm bundle add` calls `BundleLibrary.add`: it reads and inspects the folder, refuses it with every reason
(`bad_bundle`), copies the files, inspects the copy, lets the toolchain compile golden kernels, writes the
manifest and publishes the object by one rename. `BundleLibrary.for_abi` then answers which bundle a device gets.
"""
