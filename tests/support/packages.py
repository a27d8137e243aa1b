"""A package's manifest as `farm compile` writes it."""

from datetime import UTC, datetime

from farm.bundle.model import Abi, Platform
from farm.compiler.model import TensorSpec, numpy_dtype
from farm.compiler.package import PackageManifest

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-android", "mattr": ["+neon", "+dotprod", "-sve"]}
MADE = PackageManifest(
    format=1, name="net.onnx", source_format="onnx", source_sha256="a" * 64, key="b" * 64,
    inputs=(TensorSpec("x", (1, 4), numpy_dtype("float32")),),
    outputs=(TensorSpec("y", (1, 2), numpy_dtype("bfloat16")),), target_name="cpu",
    target=TARGET, device="cpu", abi=Abi.ARM64, platform=Platform.ANDROID, precision="float16", tvm="0.27.0",
    tvm_ffi="0.1.14", farm="1", linker="ld.lld", reference_by="onnx.reference", reference_independent=True,
    created=datetime(2026, 11, 22, tzinfo=UTC),
)  # fmt: skip
