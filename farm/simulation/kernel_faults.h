// Kernels that misbehave on request: compiled only into a virtual phone's tvm_rpc (FARM_VIRTUAL_PHONE).
//
// The lab writes one word into <state folder>/kernel_fault (farm/simulation/state.py: KernelFault). Every call of a
// function of a loaded module looks at that file first; unchanged, that costs one stat(), about half a microsecond.

#ifndef FARM_SIMULATION_KERNEL_FAULTS_H_
#define FARM_SIMULATION_KERNEL_FAULTS_H_

#include <dlpack/dlpack.h>
#include <sys/stat.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

namespace farm {

namespace ffi = tvm::ffi;

// What the lab wants to happen now.
class FaultFile {
 public:
  static const std::string& Word() { return Now().word_; }
  // The number behind the word.
  static double Seconds() { return Now().seconds_; }

 private:
  static FaultFile& Now() {
    static FaultFile file;
    file.Refresh();
    return file;
  }
  FaultFile() {
    const char* folder = std::getenv("FARM_VIRTUAL_STATE");
    path_ = std::string(folder != nullptr ? folder : "/dev/farm/state") + "/kernel_fault";
  }
  void Refresh() {
    struct stat now {};
    if (stat(path_.c_str(), &now) != 0) {
      word_ = "none";
      inode_ = 0;
    } else if (now.st_ino != inode_ || now.st_mtim.tv_sec != changed_.tv_sec ||
               now.st_mtim.tv_nsec != changed_.tv_nsec) {
      inode_ = now.st_ino;
      changed_ = now.st_mtim;
      word_ = "none";
      seconds_ = 0;
      std::ifstream(path_) >> word_ >> seconds_;
    }
  }

  std::string path_;
  std::string word_ = "none";
  double seconds_ = 0;
  ino_t inode_ = 0;
  timespec changed_{};
};

// Set-up and look-up functions of the Relax VM: a kernel runs in none of them, so none of them may crash.
inline bool RunsKernels(const std::string& name) {
  return name.rfind("vm_", 0) != 0 && name.rfind("get_", 0) != 0 && name.rfind("set_input", 0) != 0;
}

// As in a driver that does not return: this process spins, deaf to all but SIGKILL, and a child of it outlives that too
// (stuck_driver.c, which the lab put beside the word when it could).
[[noreturn]] inline void GetStuck(double seconds) {
  for (int number = 1; number < NSIG; ++number) std::signal(number, SIG_IGN);
  if (fork() == 0) {
    const char* folder = std::getenv("FARM_VIRTUAL_STATE");
    const std::string program = std::string(folder != nullptr ? folder : "/dev/farm/state") + "/stuck_driver";
    execl(program.c_str(), "stuck_driver", std::to_string(seconds).c_str(), static_cast<char*>(nullptr));
    _exit(0);
  }
  for (volatile uint64_t spin = 0;; spin = spin + 1) {
  }
}

inline void MisbehaveBefore(const std::string& name) {
  const std::string& word = FaultFile::Word();
  if (word == "none" || !RunsKernels(name)) return;
  if (word == "segfault") {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  if (word == "unkillable") GetStuck(FaultFile::Seconds());
  if (word == "ignore_sigterm") {
    std::signal(SIGTERM, SIG_IGN);
    for (volatile uint64_t spin = 0;; spin = spin + 1) {
    }
  }
}

inline void Spoil(const DLTensor* tensor) {
  if (tensor == nullptr || tensor->device.device_type != kDLCPU || tensor->data == nullptr) return;
  int64_t elements = 1;
  for (int i = 0; i < tensor->ndim; ++i) elements *= tensor->shape[i];
  auto* bytes = static_cast<uint8_t*>(tensor->data) + tensor->byte_offset;
  if (tensor->dtype.code == kDLFloat && tensor->dtype.bits == 32) {
    auto* numbers = reinterpret_cast<float*>(bytes);
    for (int64_t i = 0; i < elements; ++i) numbers[i] = numbers[i] * 1.5F + 1.0F;  // plausible, and wrong everywhere
  } else {
    const int64_t size = elements * ((tensor->dtype.bits * tensor->dtype.lanes + 7) / 8);
    for (int64_t i = 0; i < size; ++i) bytes[i] ^= 1;
  }
}

// A kernel writes to its last tensor argument; the VM's get_output returns a tensor.
inline void SpoilResults(const ffi::AnyView* args, int32_t count, const ffi::Any* result) {
  // as(), not try_cast(): that would turn "no result" into a null tensor.
  if (auto tensor = result->as<ffi::Tensor>(); tensor && tensor->defined()) {
    Spoil(tensor->GetDLTensorPtr());
    return;
  }
  for (int32_t i = count; i-- > 0;) {
    if (auto tensor = args[i].try_cast<DLTensor*>()) {
      Spoil(*tensor);
      return;
    }
  }
}

ffi::Module WithFaults(ffi::Module module);

class FaultyModule final : public ffi::ModuleObj {
 public:
  explicit FaultyModule(ffi::Module inner) : inner_(std::move(inner)) {}

  const char* kind() const final { return inner_->kind(); }
  int GetPropertyMask() const final { return inner_->GetPropertyMask(); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    ffi::Optional<ffi::Function> found = inner_->GetFunction(name, /*query_imports=*/true);
    if (!found.has_value()) return found;
    return ffi::Function::FromPacked([function = found.value(), called = std::string(name), keep = inner_](
                                         const ffi::AnyView* args, int32_t count, ffi::Any* result) {
      MisbehaveBefore(called);
      function.CallPacked(args, count, result);
      if (auto module = result->as<ffi::Module>()) {
        *result = WithFaults(*module);
      } else if (FaultFile::Word() == "wrong_numbers" && called.rfind("set_input", 0) != 0) {
        SpoilResults(args, count, result);
      }
    });
  }

 private:
  ffi::Module inner_;
};

inline ffi::Module WithFaults(ffi::Module module) {
  return ffi::Module(ffi::make_object<FaultyModule>(std::move(module)));
}

}  // namespace farm

#endif  // FARM_SIMULATION_KERNEL_FAULTS_H_
