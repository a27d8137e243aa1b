// libOpenCL.so of a virtual phone with `+opencl`: the host's driver under the name of a vendor's.
//
// Functions that are not defined here are found in the host's ICD loader (libOpenCL.so.1), to which this library links.
// Its RPATH leads to the host's libraries, which nothing else on the phone sees. The lab writes a word into
// <state folder>/driver_fault (farm/simulation/state.py: DriverFault), and the driver misbehaves accordingly.
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#include <CL/cl.h>
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY_BYTES (4LL << 30)
#define SMALL_IMAGE ((size_t)64)  // pixels
#define SMALL_LOCAL_MEMORY ((cl_ulong)1024)
static const char kFalseExtensions[] = " cl_khr_fp16 cl_qcom_ml_ops";

static int HasFault(const char* fault) {
  char path[4096], word[32] = "";
  const char* folder = getenv("FARM_VIRTUAL_STATE");
  snprintf(path, sizeof path, "%s/driver_fault", folder != NULL ? folder : "/dev/farm/state");
  FILE* file = fopen(path, "re");
  if (file == NULL) return 0;
  const int found = fscanf(file, "%31s", word) == 1 && strcmp(word, fault) == 0;
  fclose(file);
  return found;
}

static void* Real(const char* name) {
  static void* loader = NULL;
  if (loader == NULL) loader = dlopen("libOpenCL.so.1", RTLD_NOW);
  return loader != NULL ? dlsym(loader, name) : NULL;
}

__attribute__((constructor)) static void Load(void) {
  if (HasFault("crash")) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  setenv("OCL_ICD_VENDORS", "/vendor/etc/OpenCL/vendors", 1);
  setenv("POCL_CACHE_DIR", "/data/vendor/opencl", 1);
  // The phone's files state its profile's processors and memory, which are not those that compute.
  cpu_set_t usable;
  char machine[64];
  // It fails where the host has more processors than a cpu_set_t: then one computes.
  const int count = sched_getaffinity(0, sizeof usable, &usable) == 0 ? CPU_COUNT(&usable) : 1;
  snprintf(machine, sizeof machine, "numa:1(memory=%lld) core:%d pu:1", MEMORY_BYTES, count);
  setenv("HWLOC_SYNTHETIC", machine, 1);
}

// The phone's only device is its GPU.
cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id* devices, cl_uint* count) {
  cl_int (*real)(cl_platform_id, cl_device_type, cl_uint, cl_device_id*, cl_uint*) = Real("clGetDeviceIDs");
  if (type == CL_DEVICE_TYPE_CPU) return CL_DEVICE_NOT_FOUND;
  return real(platform, type == CL_DEVICE_TYPE_GPU ? CL_DEVICE_TYPE_CPU : type, room, devices, count);
}

cl_int clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t room, void* value, size_t* size) {
  cl_int (*real)(cl_device_id, cl_device_info, size_t, void*, size_t*) = Real("clGetDeviceInfo");
  if (what == CL_DEVICE_EXTENSIONS && HasFault("false_extensions")) {
    size_t stated = 0;
    const cl_int status = real(device, what, 0, NULL, &stated);
    if (status != CL_SUCCESS) return status;
    const size_t needed = stated + sizeof kFalseExtensions - 1;
    if (size != NULL) *size = needed;
    if (value == NULL) return CL_SUCCESS;
    if (room < needed) return CL_INVALID_VALUE;
    real(device, what, stated, value, NULL);
    strcat(value, kFalseExtensions);
    return CL_SUCCESS;
  }
  const cl_int status = real(device, what, room, value, size);
  if (status != CL_SUCCESS || value == NULL) return status;
  if (what == CL_DEVICE_TYPE) *(cl_device_type*)value = CL_DEVICE_TYPE_GPU;
  const int is_limit = what == CL_DEVICE_IMAGE2D_MAX_WIDTH || what == CL_DEVICE_IMAGE2D_MAX_HEIGHT;
  if (is_limit && HasFault("small_images")) *(size_t*)value = SMALL_IMAGE;
  if (what == CL_DEVICE_LOCAL_MEM_SIZE && HasFault("small_local_memory")) *(cl_ulong*)value = SMALL_LOCAL_MEMORY;
  return status;
}

cl_mem clCreateImage(cl_context context, cl_mem_flags flags, const cl_image_format* format, const cl_image_desc* wanted,
                     void* data, cl_int* status) {
  cl_mem (*real)(cl_context, cl_mem_flags, const cl_image_format*, const cl_image_desc*, void*, cl_int*) =
      Real("clCreateImage");
  if ((wanted->image_width > SMALL_IMAGE || wanted->image_height > SMALL_IMAGE) && HasFault("small_images")) {
    if (status != NULL) *status = CL_INVALID_IMAGE_SIZE;
    return NULL;
  }
  return real(context, flags, format, wanted, data, status);
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id* devices, const char* options,
                      void(CL_CALLBACK* done)(cl_program, void*), void* data) {
  cl_int (*real)(cl_program, cl_uint, const cl_device_id*, const char*, void(CL_CALLBACK*)(cl_program, void*), void*) =
      Real("clBuildProgram");
  while (HasFault("hang")) pause();
  return real(program, count, devices, options, done, data);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint axes, const size_t* offset,
                              const size_t* all, const size_t* group, cl_uint count, const cl_event* before,
                              cl_event* done) {
  cl_int (*real)(cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,
                 const cl_event*, cl_event*) = Real("clEnqueueNDRangeKernel");
  cl_device_id device = NULL;
  cl_ulong needed = 0;
  clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
  clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof needed, &needed, NULL);
  if (needed > SMALL_LOCAL_MEMORY && HasFault("small_local_memory")) return CL_OUT_OF_RESOURCES;
  return real(queue, kernel, axes, offset, all, group, count, before, done);
}
