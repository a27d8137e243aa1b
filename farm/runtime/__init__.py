"""The runtime that farm itself makes for phones: `tvm_rpc`, from the source here, with libraries out of packages.

`tvm_rpc.cc` is the RPC server, for phones and virtual phones. `server` compiles it and finds a compiler; `packages`
fetches TVM's wheels and Debian's C and C++ libraries for an ABI; `parts` keeps what was fetched or made, each part
whole or not at all; `build` puts a folder together that `farm bundle add` takes (farm.bundle).

`farm bundle build` calls `build_from_wheels`: it takes the parts from the cache or makes them, and returns a folder
in which `tvm_rpc` lies beside its own loader and C library, so that it needs nothing of the phone's system.
With an NDK it calls `ndk_build.build_with_ndk`, which judges the NDK and compiles TVM by CMake on ndk_project;
`checkout` judges TVM's sources.
`farm.simulation` takes single parts for virtual phones.
"""
