"""What a failed check of a texture operator means: the operator's fault, or the phone's."""

from types import SimpleNamespace

import pytest

from farm.common.errors import Code, FarmError, Fault
from farm.worker.session import on_phone
from farm.worker.textures import gpu_of


@pytest.mark.parametrize(
    ("said", "of_kernel"),
    [
        ("OpenCL build error for device=0x1", True),
        ("RPCError: Error caught from RPC call:\nOpenCL Error, code=-40: CL_INVALID_IMAGE_SIZE", True),
        ("OpenCL Error, code=-54: CL_INVALID_WORK_GROUP_SIZE", True),
        ("OpenCL Error, code=-5: CL_OUT_OF_RESOURCES", False),
        ("Socket SockChannel::Recv Error: Connection reset by peer", False),
        ("code=kShutdown", False),
    ],
)
def test_only_what_the_driver_refuses_is_the_operators_fault(said, of_kernel):
    with pytest.raises(FarmError) as caught, on_phone("running the texture operator check_0"):
        raise RuntimeError(said)
    assert (caught.value.code == Code.KERNEL_REFUSED) is of_kernel
    assert caught.value.fault is (Fault.USER if of_kernel else Fault.PHONE)  # a refusal is not tried again


@pytest.mark.parametrize(
    ("name", "driver", "told"),
    [("Adreno (TM) 740", "V@0676", "Adreno (TM) 740, driver V@0676"), ("Adreno (TM) 740", "", ""), (None, "1", "")],
)
def test_a_gpu_is_known_by_its_name_and_driver(name, driver, told):
    assert gpu_of(SimpleNamespace(device_name=name, driver_version=driver)) == told
