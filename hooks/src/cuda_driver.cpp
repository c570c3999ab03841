#include "cuda_driver.hpp"

#include <dlfcn.h>

#include <cstdio>

namespace freeride::hooks {
namespace {

// Of cuda.h, version 11.7 and later.
constexpr int kSuccess = 0, kNotReady = 600;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kRegisterPortable = 1, kRegisterDeviceMap = 2;
constexpr int kAttributeCanUse64BitStreamMemOps = 122;
constexpr unsigned kWaitGreaterOrEqual = 0;
const CudaStream kStreamOfThread = reinterpret_cast<CudaStream>(2);  // CU_STREAM_PER_THREAD: waits for no other
constexpr char kEmptyKernel[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry freeride_empty() { ret; }\n";

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<CudaDriver> CudaDriver::load() {
  // Never closed: it is the trainer's.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Error{Code::kNotFound, "there is no CUDA driver (libcuda.so.1)", ""};
  CudaDriver cuda;
  const bool all = find(library, "cuGetErrorName", cuda.get_error_name_) &&
                   find(library, "cuCtxGetCurrent", cuda.ctx_get_current_) &&
                   find(library, "cuCtxGetDevice", cuda.ctx_get_device_) &&
                   find(library, "cuDeviceGetUuid_v2", cuda.device_get_uuid_) &&
                   find(library, "cuDeviceGetAttribute", cuda.device_get_attribute_) &&
                   find(library, "cuMemHostRegister_v2", cuda.mem_host_register_) &&
                   find(library, "cuMemHostGetDevicePointer_v2", cuda.mem_host_get_device_pointer_) &&
                   find(library, "cuMemGetInfo_v2", cuda.mem_get_info_) &&
                   find(library, "cuModuleLoadData", cuda.module_load_data_) &&
                   find(library, "cuModuleGetFunction", cuda.module_get_function_) &&
                   find(library, "cuLaunchKernel", cuda.launch_kernel_) &&
                   find(library, "cuStreamIsCapturing", cuda.stream_is_capturing_) &&
                   find(library, "cuStreamWriteValue64_v2", cuda.stream_write_value_64_) &&
                   find(library, "cuStreamWriteValue32_v2", cuda.stream_write_value_32_) &&
                   find(library, "cuStreamWaitValue32_v2", cuda.stream_wait_value_32_);
  if (!all) return Error{Code::kNotFound, "the CUDA driver is too old: it has no stream memory operations of 11.7", ""};
  // Without one of these nothing of other hosts is held.
  const bool timing =
      find(library, "cuStreamCreate", cuda.stream_create_) &&
      find(library, "cuStreamWaitEvent", cuda.stream_wait_event_) &&
      find(library, "cuLaunchHostFunc", cuda.launch_host_func_) && find(library, "cuEventRecord", cuda.event_record_) &&
      find(library, "cuEventQuery", cuda.event_query_) && find(library, "cuEventElapsedTime", cuda.event_elapsed_time_);
  if (timing) find(library, "cuEventCreate", cuda.event_create_);
  return cuda;
}

Status CudaDriver::status(int code, const char* what) const {
  if (code == kSuccess) return {};
  const char* name = nullptr;
  if (get_error_name_(code, &name) != kSuccess || name == nullptr) name = "unknown error";
  return Error{Code::kInternal, std::string("CUDA: ") + what + ": " + name, ""};
}

Result<std::string> CudaDriver::device_uuid() const {
  void* context = nullptr;
  int device = 0;
  if (ctx_get_current_(&context) != kSuccess || context == nullptr || ctx_get_device_(&device) != kSuccess) {
    return Error{Code::kUnavailable, "no CUDA context is current on this thread", "attach after the first CUDA call"};
  }
  unsigned char bytes[16];
  auto got = status(device_get_uuid_(bytes, device), "cannot tell the device's UUID");
  if (!got.ok()) return got.error();
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char pair[4];
    std::snprintf(pair, sizeof(pair), "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += pair;
  }
  return text;
}

const void* CudaDriver::context() const {
  void* context = nullptr;
  return ctx_get_current_(&context) == kSuccess ? context : nullptr;
}

bool CudaDriver::can_write_64() const {
  int device = 0, can = 0;
  return ctx_get_device_(&device) == kSuccess &&
         device_get_attribute_(&can, kAttributeCanUse64BitStreamMemOps, device) == kSuccess && can != 0;
}

Result<CudaAddress> CudaDriver::share(void* memory, size_t bytes) const {
  auto done =
      status(mem_host_register_(memory, bytes, kRegisterPortable | kRegisterDeviceMap), "cannot register a page");
  if (!done.ok()) return done.error();
  CudaAddress address = 0;
  done = status(mem_host_get_device_pointer_(&address, memory, 0), "a page has no address on the device");
  if (!done.ok()) return done.error();
  return address;
}

bool CudaDriver::is_capturing(CudaStream stream) const {
  int capturing = 0;
  return stream_is_capturing_(stream, &capturing) == kSuccess && capturing != 0;
}

Result<CudaKernel> CudaDriver::empty_kernel() const {
  void* module = nullptr;  // for as long as the context lives
  auto done = status(module_load_data_(&module, kEmptyKernel), "cannot load a kernel");
  if (!done.ok()) return done.error();
  CudaKernel kernel = nullptr;
  done = status(module_get_function_(&kernel, module, "freeride_empty"), "cannot find a kernel");
  if (!done.ok()) return done.error();
  done = launch(kStreamOfThread, kernel);
  if (!done.ok()) return done.error();
  return kernel;
}

uint64_t CudaDriver::free_bytes() const {
  size_t free = 0, total = 0;
  return mem_get_info_(&free, &total) == kSuccess ? free : 0;
}

Status CudaDriver::write_64(CudaStream stream, CudaAddress address, uint64_t value) const {
  return status(stream_write_value_64_(stream, address, value, 0), "cannot write in stream order");
}

Status CudaDriver::write_32(CudaStream stream, CudaAddress address, uint32_t value) const {
  return status(stream_write_value_32_(stream, address, value, 0), "cannot write in stream order");
}

Status CudaDriver::wait_32(CudaStream stream, CudaAddress address, uint32_t value) const {
  return status(stream_wait_value_32_(stream, address, value, kWaitGreaterOrEqual), "cannot wait in stream order");
}

Status CudaDriver::launch(CudaStream stream, CudaKernel kernel) const {
  return status(launch_kernel_(kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "cannot launch a kernel");
}

Result<CudaStream> CudaDriver::new_stream() const {
  CudaStream stream = nullptr;
  auto made = status(stream_create_(&stream, kNonBlocking), "cannot make a stream");
  if (!made.ok()) return made.error();
  return stream;
}

Result<CudaEvent> CudaDriver::new_event() const {
  CudaEvent event = nullptr;
  auto made = status(event_create_(&event, 0), "cannot make an event");
  if (!made.ok()) return made.error();
  return event;
}

Status CudaDriver::record(CudaEvent event, CudaStream stream) const {
  return status(event_record_(event, stream), "cannot record an event");
}

Result<bool> CudaDriver::is_over(CudaEvent event) const {
  const int code = event_query_(event);
  if (code == kNotReady) return false;
  auto done = status(code, "cannot ask an event");
  if (!done.ok()) return done.error();
  return true;
}

Result<int64_t> CudaDriver::between_ns(CudaEvent from, CudaEvent to) const {
  float ms = 0;
  auto told = status(event_elapsed_time_(&ms, from, to), "cannot tell the time between two events");
  if (!told.ok()) return told.error();
  return static_cast<int64_t>(double{ms} * 1e6);
}

Status CudaDriver::wait_event(CudaStream stream, CudaEvent event) const {
  return status(stream_wait_event_(stream, event, 0), "cannot wait for an event");
}

Status CudaDriver::call(CudaStream stream, void (*function)(void*), void* context) const {
  return status(launch_host_func_(stream, function, context), "cannot call a function in stream order");
}

}  // namespace freeride::hooks
