// OpenCL for TVM on virtual phones, where no checkout of TVM gives TVM's own library (farm/runtime/build.py).
//
// What the OpenCL that TVM generates needs of a runtime: buffers, images (memory scopes `global.texture*`), kernels
// from source, and a timer that adds up the driver's times. One device, one thread: a session's. Other layouts of a
// module than that of TVM 0.27 are refused. The driver is looked for when a session first asks for a device.

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/device_api.h>
// TVM's wheels lack headers that its tensor.h includes. What the headers below need of that:
#define TVM_RUNTIME_TENSOR_H_
namespace tvm::runtime {
class Tensor;
}
template <>
struct std::hash<DLDevice> {
  size_t operator()(const DLDevice& device) const { return device.device_type * 1024 + device.device_id; }
};
template <>
struct std::equal_to<DLDevice> {
  bool operator()(const DLDevice& one, const DLDevice& other) const {
    return one.device_type == other.device_type && one.device_id == other.device_id;
  }
};
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/timer.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farm {

namespace ffi = tvm::ffi;
using tvm::Device;
using tvm::runtime::DeviceAPI;
using tvm::runtime::DeviceAttrKind;

constexpr size_t kChannels = 4;  // of a pixel: every image is RGBA

// ---- the driver ----------------------------------------------------------------------------------------------------

const char* NameOf(cl_int status) {
  switch (status) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES: return "CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY: return "CL_OUT_OF_HOST_MEMORY";
    case CL_BUILD_PROGRAM_FAILURE: return "CL_BUILD_PROGRAM_FAILURE";
    case CL_INVALID_IMAGE_SIZE: return "CL_INVALID_IMAGE_SIZE";
    case CL_INVALID_WORK_GROUP_SIZE: return "CL_INVALID_WORK_GROUP_SIZE";
    case CL_INVALID_BUFFER_SIZE: return "CL_INVALID_BUFFER_SIZE";
    default: return "OpenCL error";
  }
}

void Check(cl_int status, const char* call) {
  if (status == CL_SUCCESS) return;
  TVM_FFI_THROW(RuntimeError) << call << ": " << NameOf(status) << " (" << status << ")";
}

#define FARM_OPENCL_FUNCTIONS(APPLY)                                                                                 \
  APPLY(clGetPlatformIDs) APPLY(clGetDeviceIDs) APPLY(clGetDeviceInfo) APPLY(clCreateContext)                        \
  APPLY(clCreateCommandQueue) APPLY(clFinish) APPLY(clCreateBuffer) APPLY(clCreateImage) APPLY(clReleaseMemObject)   \
  APPLY(clEnqueueReadBuffer) APPLY(clEnqueueWriteBuffer) APPLY(clEnqueueCopyBuffer) APPLY(clEnqueueReadImage)        \
  APPLY(clEnqueueWriteImage) APPLY(clEnqueueCopyImage) APPLY(clEnqueueCopyBufferToImage)                             \
  APPLY(clEnqueueCopyImageToBuffer) APPLY(clCreateProgramWithSource) APPLY(clBuildProgram)                           \
  APPLY(clGetProgramBuildInfo) APPLY(clReleaseProgram) APPLY(clCreateKernel) APPLY(clReleaseKernel)                  \
  APPLY(clSetKernelArg) APPLY(clGetKernelWorkGroupInfo) APPLY(clEnqueueNDRangeKernel) APPLY(clGetEventProfilingInfo) \
  APPLY(clReleaseEvent)

class Driver {
 public:
#define FARM_DECLARE(function) decltype(&::function) function = nullptr;
  FARM_OPENCL_FUNCTIONS(FARM_DECLARE)
#undef FARM_DECLARE

  cl_device_id device = nullptr;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;

  // The driver with its first GPU; throws while there is none.
  static Driver& Get() {
    static Driver driver;
    return driver;
  }

  template <typename T>
  T Info(cl_device_info what) const {
    T value{};
    Check(clGetDeviceInfo(device, what, sizeof value, &value, nullptr), "clGetDeviceInfo");
    return value;
  }
  std::string Text(cl_device_info what) const {
    size_t size = 0;
    Check(clGetDeviceInfo(device, what, 0, nullptr, &size), "clGetDeviceInfo");
    std::string text(size, '\0');
    Check(clGetDeviceInfo(device, what, size, text.data(), nullptr), "clGetDeviceInfo");
    return text.substr(0, text.find('\0'));
  }
  void Finish() const { Check(clFinish(queue), "clFinish"); }

 private:
  Driver() {
    void* library = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) TVM_FFI_THROW(RuntimeError) << "no OpenCL driver: " << dlerror();
#define FARM_LOOK_UP(function)                                                     \
  function = reinterpret_cast<decltype(function)>(dlsym(library, #function));      \
  if (function == nullptr) TVM_FFI_THROW(RuntimeError) << "libOpenCL.so has no " #function;
    FARM_OPENCL_FUNCTIONS(FARM_LOOK_UP)
#undef FARM_LOOK_UP
    cl_platform_id platform = nullptr;
    cl_int status = CL_SUCCESS;
    Check(clGetPlatformIDs(1, &platform, nullptr), "clGetPlatformIDs");
    // A virtual phone's driver calls itself a GPU; a host's own says what it is.
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_GPU, 1, &device, nullptr) != CL_SUCCESS) {
      Check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, nullptr), "clGetDeviceIDs");
    }
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
    Check(status, "clCreateContext");
    queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &status);
    Check(status, "clCreateCommandQueue");
  }
};

// ---- memory --------------------------------------------------------------------------------------------------------

// What a tensor's `data` points to.
struct Memory {
  cl_mem object = nullptr;
  std::array<size_t, 3> region{};  // width, height, depth in pixels; none of a buffer
  bool IsImage() const { return region[0] != 0; }
};

// How TVM lays a tensor out in an image: the last axis is the channels, `split` of the others are rows and layers.
std::array<size_t, 3> RegionOf(const std::string& scope, int rank, const int64_t* shape) {
  const int split = scope == "global.texture" ? rank - 2 : scope == "global.texture-weight" ? 1 : 2;
  if (scope.rfind("global.texture", 0) != 0 || split < 1 || split >= rank || shape[rank - 1] != kChannels) {
    TVM_FFI_THROW(ValueError) << "no image can hold a tensor of " << rank << " axes in the memory " << scope;
  }
  std::array<size_t, 3> region{1, 1, 1};
  for (int axis = 0; axis < rank - 1; ++axis) region[axis < split - 1 ? 2 : axis < split ? 1 : 0] *= shape[axis];
  return region;
}

Memory* NewBuffer(size_t bytes) {
  const Driver& driver = Driver::Get();
  cl_int status = CL_SUCCESS;
  const cl_mem object =
      driver.clCreateBuffer(driver.context, CL_MEM_READ_WRITE, std::max<size_t>(bytes, 1), nullptr, &status);
  Check(status, "clCreateBuffer");
  return new Memory{object};
}

Memory* NewImage(const std::array<size_t, 3>& region, size_t channel_bits) {
  const Driver& driver = Driver::Get();
  const size_t widest = driver.Info<size_t>(CL_DEVICE_IMAGE2D_MAX_WIDTH);
  const size_t highest = driver.Info<size_t>(CL_DEVICE_IMAGE2D_MAX_HEIGHT);
  if (region[0] > widest || region[1] > highest) {
    TVM_FFI_THROW(RuntimeError) << "CL_INVALID_IMAGE_SIZE: an image of " << region[0] << " x " << region[1]
                                << " pixels, and the GPU's largest is " << widest << " x " << highest;
  }
  if (channel_bits != 32 && channel_bits != 16) {
    TVM_FFI_THROW(ValueError) << "an image has float32 or float16, not " << channel_bits << " bits";
  }
  const cl_image_format format{CL_RGBA, static_cast<cl_channel_type>(channel_bits == 32 ? CL_FLOAT : CL_HALF_FLOAT)};
  cl_image_desc wanted{};
  wanted.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY;
  wanted.image_width = region[0];
  wanted.image_height = region[1];
  wanted.image_array_size = region[2];
  cl_int status = CL_SUCCESS;
  const cl_mem object =
      driver.clCreateImage(driver.context, CL_MEM_READ_WRITE, &format, &wanted, nullptr, &status);
  Check(status, "clCreateImage");
  return new Memory{object, region};
}

Memory* NewMemory(int rank, const int64_t* shape, DLDataType type, const std::string& scope) {
  if (!scope.empty() && scope != "global") return NewImage(RegionOf(scope, rank, shape), type.bits);
  size_t count = 1;
  for (int axis = 0; axis < rank; ++axis) count *= shape[axis];
  return NewBuffer(ffi::GetDataSize(count, type));
}

void Release(void* data) {
  auto* memory = static_cast<Memory*>(data);
  Driver& driver = Driver::Get();
  driver.Finish();  // commands that use it may be under way
  Check(driver.clReleaseMemObject(memory->object), "clReleaseMemObject");
  delete memory;
}

void Copy(const DLTensor& from, const DLTensor& to) {
  const Driver& driver = Driver::Get();
  constexpr std::array<size_t, 3> kOrigin{};
  const size_t bytes = ffi::GetDataSize(from);
  const auto* source = static_cast<const Memory*>(from.data);
  const auto* target = static_cast<const Memory*>(to.data);
  if (to.device.device_type == kDLCPU) {
    char* place = static_cast<char*>(to.data) + to.byte_offset;
    Check(source->IsImage()
              ? driver.clEnqueueReadImage(driver.queue, source->object, CL_TRUE, kOrigin.data(), source->region.data(),
                                          0, 0, place, 0, nullptr, nullptr)
              : driver.clEnqueueReadBuffer(driver.queue, source->object, CL_TRUE, from.byte_offset, bytes, place, 0,
                                           nullptr, nullptr),
          "reading from the GPU");
  } else if (from.device.device_type == kDLCPU) {
    const char* place = static_cast<const char*>(from.data) + from.byte_offset;
    Check(target->IsImage()
              ? driver.clEnqueueWriteImage(driver.queue, target->object, CL_TRUE, kOrigin.data(),
                                           target->region.data(), 0, 0, place, 0, nullptr, nullptr)
              : driver.clEnqueueWriteBuffer(driver.queue, target->object, CL_TRUE, to.byte_offset, bytes, place, 0,
                                            nullptr, nullptr),
          "writing to the GPU");
  } else if (source->IsImage() && target->IsImage()) {
    Check(driver.clEnqueueCopyImage(driver.queue, source->object, target->object, kOrigin.data(), kOrigin.data(),
                                    target->region.data(), 0, nullptr, nullptr),
          "clEnqueueCopyImage");
  } else if (source->IsImage()) {
    Check(driver.clEnqueueCopyImageToBuffer(driver.queue, source->object, target->object, kOrigin.data(),
                                            source->region.data(), to.byte_offset, 0, nullptr, nullptr),
          "clEnqueueCopyImageToBuffer");
  } else if (target->IsImage()) {
    Check(driver.clEnqueueCopyBufferToImage(driver.queue, source->object, target->object, from.byte_offset,
                                            kOrigin.data(), target->region.data(), 0, nullptr, nullptr),
          "clEnqueueCopyBufferToImage");
  } else {
    Check(driver.clEnqueueCopyBuffer(driver.queue, source->object, target->object, from.byte_offset, to.byte_offset,
                                     bytes, 0, nullptr, nullptr),
          "clEnqueueCopyBuffer");
  }
}

// ---- TVM's device --------------------------------------------------------------------------------------------------

class OpenClDevice final : public DeviceAPI {
 public:
  void SetDevice(Device) final {}
  void GetAttr(Device device, DeviceAttrKind kind, ffi::Any* result) final {
    if (kind == tvm::runtime::kExist) {
      *result = device.device_id == 0 && HasDriver();
      return;
    }
    const Driver& driver = Driver::Get();
    switch (kind) {
      case tvm::runtime::kMaxThreadsPerBlock: *result = Number(driver.Info<size_t>(CL_DEVICE_MAX_WORK_GROUP_SIZE)); break;
      case tvm::runtime::kWarpSize: *result = 1; break;
      case tvm::runtime::kMaxSharedMemoryPerBlock: *result = Number(driver.Info<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE)); break;
      case tvm::runtime::kComputeVersion: *result = driver.Text(CL_DEVICE_VERSION); break;
      case tvm::runtime::kDeviceName: *result = driver.Text(CL_DEVICE_NAME); break;
      case tvm::runtime::kDriverVersion: *result = driver.Text(CL_DRIVER_VERSION); break;
      case tvm::runtime::kMultiProcessorCount: *result = Number(driver.Info<cl_uint>(CL_DEVICE_MAX_COMPUTE_UNITS)); break;
      case tvm::runtime::kTotalGlobalMemory: *result = Number(driver.Info<cl_ulong>(CL_DEVICE_GLOBAL_MEM_SIZE)); break;
      case tvm::runtime::kImagePitchAlignment: *result = 1; break;
      default: break;
    }
  }
  void* AllocDataSpace(Device, size_t bytes, size_t, DLDataType) final { return NewBuffer(bytes); }
  void* AllocDataSpace(Device, int rank, const int64_t* shape, DLDataType type,
                       ffi::Optional<ffi::String> scope) final {
    return NewMemory(rank, shape, type, scope.value_or(""));
  }
  size_t GetDataSize(const DLTensor& tensor, ffi::Optional<ffi::String>) final { return ffi::GetDataSize(tensor); }
  void FreeDataSpace(Device, void* data) final { Release(data); }
  void CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle) final {
    if (ffi::GetDataSize(*from) != ffi::GetDataSize(*to)) TVM_FFI_THROW(ValueError) << "a copy to another size";
    Copy(*from, *to);
  }
  void StreamSync(Device, TVMStreamHandle) final { Driver::Get().Finish(); }

 private:
  template <typename T>
  static int64_t Number(T value) {
    return static_cast<int64_t>(value);
  }
  static bool HasDriver() {
    try {
      return Driver::Get().device != nullptr;
    } catch (const ffi::Error&) {
      return false;
    }
  }
};

// The VM's. A tensor in another memory than its storage's is one of its own: the VM writes before it reads.
class OpenClAllocator final : public tvm::runtime::memory::Allocator {
 public:
  explicit OpenClAllocator(tvm::runtime::memory::AllocatorType type) : Allocator(type) {}

  tvm::runtime::memory::Buffer Alloc(Device device, size_t bytes, size_t, DLDataType) final {
    return Counted(device, NewBuffer(bytes), bytes);
  }
  tvm::runtime::memory::Buffer Alloc(Device device, ffi::Shape shape, DLDataType type, const std::string& scope) final {
    const size_t bytes = ffi::GetDataSize(shape.Product(), type);
    return Counted(device, NewMemory(static_cast<int>(shape.size()), shape.data(), type, scope), bytes);
  }
  void* CreateView(const tvm::runtime::memory::Buffer&, ffi::Shape shape, DLDataType type,
                   const std::string& scope) final {
    return NewMemory(static_cast<int>(shape.size()), shape.data(), type, scope);
  }
  void FreeView(Device, void* data) final { Release(data); }
  void Free(const tvm::runtime::memory::Buffer& buffer) final {
    Release(buffer.data);
    used_ -= buffer.size;
  }
  size_t UsedMemory() const final { return used_; }

 private:
  tvm::runtime::memory::Buffer Counted(Device device, Memory* memory, size_t bytes) {
    used_ += bytes;
    return {memory, bytes, device, type()};
  }
  size_t used_ = 0;
};

// ---- kernels -------------------------------------------------------------------------------------------------------

// Times of kernels since the first timer that runs.
std::vector<cl_event> g_events;
int g_timers = 0;

class KernelTimer final : public tvm::runtime::TimerNode {
 public:
  ~KernelTimer() { End(); }  // what it times may throw, and then nothing calls Stop
  void Start() final {
    if (!runs_) ++g_timers;
    runs_ = true;
    first_ = g_events.size();
  }
  void Stop() final {
    const Driver& driver = Driver::Get();
    driver.Finish();
    for (size_t index = first_; index < g_events.size(); ++index) elapsed_ += Nanoseconds(driver, g_events[index]);
    End();
  }
  int64_t SyncAndGetElapsedNanos() final { return elapsed_; }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("farm.OpenClKernelTimer", KernelTimer, tvm::runtime::TimerNode);

 private:
  static int64_t Nanoseconds(const Driver& driver, cl_event event) {
    cl_ulong begin = 0, end = 0;
    Check(driver.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof begin, &begin, nullptr), "timing");
    Check(driver.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, nullptr), "timing");
    return static_cast<int64_t>(end - begin);
  }
  void End() {
    if (!std::exchange(runs_, false) || --g_timers > 0) return;
    for (const cl_event event : g_events) Driver::Get().clReleaseEvent(event);
    g_events.clear();
  }
  bool runs_ = false;
  size_t first_ = 0;
  int64_t elapsed_ = 0;
};

// One kernel: its source, and what TVM says of its arguments. After the arguments come the sizes that `axes` names.
struct Kernel {
  std::string source;
  std::vector<DLDataType> types;
  std::vector<size_t> axes;  // 0 to 2: groups in x, y, z; 3 to 5: threads of a group
  cl_program program = nullptr;
  cl_kernel kernel = nullptr;

  void Launch(const std::string& name, const TVMFFIAny* args) {
    const Driver& driver = Driver::Get();
    if (kernel == nullptr) Build(driver, name);
    for (size_t index = 0; index < types.size(); ++index) SetArgument(driver, index, args[index]);
    std::array<size_t, 6> sizes{1, 1, 1, 1, 1, 1};
    for (size_t index = 0; index < axes.size(); ++index) {
      sizes[axes[index]] = std::max<int64_t>(args[types.size() + index].v_int64, 1);
    }
    const std::array<size_t, 3> all{sizes[0] * sizes[3], sizes[1] * sizes[4], sizes[2] * sizes[5]};
    cl_event event = nullptr;
    Check(driver.clEnqueueNDRangeKernel(driver.queue, kernel, 3, nullptr, all.data(), &sizes[3], 0, nullptr,
                                        g_timers > 0 ? &event : nullptr),
          name.c_str());
    if (event != nullptr) g_events.push_back(event);
  }

 private:
  void Build(const Driver& driver, const std::string& name) {
    const char* text = source.c_str();
    cl_int status = CL_SUCCESS;
    program = driver.clCreateProgramWithSource(driver.context, 1, &text, nullptr, &status);
    Check(status, "clCreateProgramWithSource");
    status = driver.clBuildProgram(program, 1, &driver.device, "", nullptr, nullptr);
    if (status != CL_SUCCESS) {
      size_t size = 0;
      driver.clGetProgramBuildInfo(program, driver.device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
      std::string log(size, '\0');
      driver.clGetProgramBuildInfo(program, driver.device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
      TVM_FFI_THROW(RuntimeError) << "the OpenCL driver cannot build " << name << ": " << NameOf(status) << "\n" << log;
    }
    kernel = driver.clCreateKernel(program, name.c_str(), &status);
    Check(status, "clCreateKernel");
    cl_ulong needed = 0;
    Check(driver.clGetKernelWorkGroupInfo(kernel, driver.device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof needed, &needed,
                                          nullptr),
          "clGetKernelWorkGroupInfo");
    const auto room = driver.Info<cl_ulong>(CL_DEVICE_LOCAL_MEM_SIZE);
    if (needed > room) {
      TVM_FFI_THROW(RuntimeError) << name << " needs " << needed << " bytes of local memory, and the GPU has " << room;
    }
  }
  void SetArgument(const Driver& driver, size_t index, const TVMFFIAny& given) const {
    const DLDataType type = types[index];
    const auto number = static_cast<cl_uint>(index);
    cl_int status = CL_SUCCESS;
    if (type.code == kDLOpaqueHandle) {
      if (given.v_ptr == nullptr) TVM_FFI_THROW(ValueError) << "argument " << index << " of a kernel is no memory";
      status = driver.clSetKernelArg(kernel, number, sizeof(cl_mem), &static_cast<Memory*>(given.v_ptr)->object);
    } else if (type.code == kDLFloat && type.bits == 32) {
      const auto value = static_cast<float>(given.v_float64);
      status = driver.clSetKernelArg(kernel, number, sizeof value, &value);
    } else if (type.code != kDLFloat && type.bits == 32) {
      const auto value = static_cast<int32_t>(given.v_int64);
      status = driver.clSetKernelArg(kernel, number, sizeof value, &value);
    } else if (type.bits == 64) {
      status = driver.clSetKernelArg(kernel, number, sizeof given.v_int64, &given.v_int64);
    } else {
      TVM_FFI_THROW(ValueError) << "argument " << index << " of a kernel is a number of the type "
                                << ffi::DLDataTypeToString(type) << ", not of 32 or 64 bits";
    }
    Check(status, "clSetKernelArg");
  }
};

// What TVM writes for a module of OpenCL: all numbers little-endian, texts with their length before them.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Number() {
    T value{};
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string Text() { return std::string(Take(Number<uint64_t>())); }
  bool Done() const { return rest_.empty(); }

 private:
  std::string_view Take(uint64_t size) {
    if (size > rest_.size()) TVM_FFI_THROW(ValueError) << "the OpenCL module is cut off, or another TVM's";
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

size_t AxisOf(const std::string& tag) {
  const size_t axis = tag.empty() ? 3 : tag.back() - 'x';
  const bool is_group = tag.rfind("blockIdx.", 0) == 0;
  if (axis > 2 || !(is_group || tag.rfind("threadIdx.", 0) == 0)) {
    TVM_FFI_THROW(ValueError) << "OpenCL kernels have no " << tag;
  }
  return is_group ? axis : axis + 3;
}

Kernel ReadKernel(Reader* reader) {
  Kernel kernel;
  reader->Text();  // its name, again
  for (auto count = reader->Number<uint64_t>(); count > 0; --count) {
    DLDataType type;
    type.code = reader->Number<uint8_t>();
    type.bits = reader->Number<uint8_t>();
    type.lanes = reader->Number<uint16_t>();
    kernel.types.push_back(type);
  }
  for (auto count = reader->Number<uint64_t>(); count > 0; --count) kernel.axes.push_back(AxisOf(reader->Text()));
  for (auto count = reader->Number<uint64_t>(); count > 0; --count) reader->Number<int32_t>();  // of other devices
  return kernel;
}

class KernelModule final : public ffi::ModuleObj {
 public:
  explicit KernelModule(const ffi::Bytes& bytes) {
    Reader reader(std::string_view(bytes.data(), bytes.size()));
    const std::string format = reader.Text();
    if (format != "cl") TVM_FFI_THROW(ValueError) << "OpenCL in the form " << format << ", not as source";
    for (auto count = reader.Number<uint64_t>(); count > 0; --count) {
      const std::string name = reader.Text();
      kernels_[name] = ReadKernel(&reader);
    }
    Split(reader.Text());
    if (!reader.Done()) TVM_FFI_THROW(ValueError) << "the OpenCL module is of another TVM's form";
  }
  ~KernelModule() {
    for (const auto& [name, kernel] : kernels_) {
      if (kernel.kernel != nullptr) Driver::Get().clReleaseKernel(kernel.kernel);
      if (kernel.program != nullptr) Driver::Get().clReleaseProgram(kernel.program);
    }
  }

  const char* kind() const final { return "opencl"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const auto found = kernels_.find(name);
    if (found == kernels_.end()) return std::nullopt;
    return ffi::Function::FromPacked([this, found, keep = ffi::GetObjectPtr<ffi::Object>(this)](
                                         const ffi::AnyView* args, int32_t, ffi::Any*) {
      found->second.Launch(found->first, reinterpret_cast<const TVMFFIAny*>(args));
    });
  }

 private:
  // Each kernel is a program of its own: its preamble is repeated before each.
  void Split(const std::string& source) {
    const std::string mark = "// Function: ";
    for (size_t begin = source.find(mark); begin != std::string::npos;) {
      const size_t line_end = source.find('\n', begin);
      const size_t next = source.find(mark, line_end);
      const std::string name = source.substr(begin + mark.size(), line_end - begin - mark.size());
      const auto found = kernels_.find(name);
      if (found == kernels_.end()) TVM_FFI_THROW(ValueError) << "the OpenCL module does not describe " << name;
      found->second.source = source.substr(line_end + 1, next == std::string::npos ? next : next - line_end - 1);
      begin = next;
    }
    for (const auto& [name, kernel] : kernels_) {
      if (kernel.source.empty()) TVM_FFI_THROW(ValueError) << "the OpenCL module has no source of " << name;
    }
  }
  std::map<std::string, Kernel> kernels_;
};

// ---- registration --------------------------------------------------------------------------------------------------

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("device_api.opencl", []() -> void* { return static_cast<DeviceAPI*>(new OpenClDevice()); })
      .def("DeviceAllocator.opencl",
           [](Device, int type) -> void* {
             using namespace tvm::runtime::memory;
             return static_cast<Allocator*>(new OpenClAllocator(static_cast<AllocatorType>(type)));
           })
      .def("runtime.timer.opencl", [](Device) { return tvm::runtime::Timer(ffi::make_object<KernelTimer>()); })
      .def("device_api.opencl.alloc_nd",
           [](int, int, int, int, ffi::String, int64_t, void* region, int64_t pixel_bits) -> void* {
             const auto* sizes = static_cast<const int64_t*>(region);
             return NewImage({static_cast<size_t>(sizes[0]), static_cast<size_t>(sizes[1]),
                              static_cast<size_t>(sizes[2])},
                             static_cast<size_t>(pixel_bits) / kChannels);
           })
      .def("device_api.opencl.free_nd",
           [](int, int, ffi::String, void* data) {
             Release(data);
             return 0;
           })
      .def("ffi.Module.load_from_bytes.opencl", [](const ffi::Bytes& bytes) {
        return ffi::Module(ffi::make_object<KernelModule>(bytes));
      });
}

}  // namespace farm
