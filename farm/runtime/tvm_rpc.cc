// tvm_rpc: a TVM RPC server in one file, over the runtime's registered function "rpc.ServerLoop".
//
// Same contract as apps/cpp_rpc of TVM: option names, exit codes, handshake, words of the log (on stderr), one forked
// process per session, one session at a time, work dir semantics. It differs where that server is dangerous and nobody
// can depend on it (docs/virtual-phone.md, "The RPC server"):
//   - SO_REUSEADDR, so a restart gets its port back; no free port is an error (exit 1) instead of port -1;
//   - a peer that connects and then keeps silent is dropped after HANDSHAKE_LIMIT_S instead of blocking forever
//     (until then it does block everybody, as in TVM);
//   - a fractional "-timeout=" is understood instead of aborting the server;
//   - a vanished tracker is reconnected to instead of dying of SIGPIPE, and no descriptor leaks;
//   - the listening socket is not inherited by sessions.
// Unchanged on purpose: a session that ignores SIGTERM after its timeout keeps the server waiting; a server killed alone
// leaves its session behind. Kill the process group.
//
// Needs TVM >= 0.25 (tvm-ffi). With FARM_VIRTUAL_PHONE defined, kernels misbehave on request (kernel_faults.h).

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tvm/ffi/c_api.h>
// Classes of TVM's headers stay inside this program (-fvisibility=hidden), which may be compiled with another C++ library
// than TVM's own (Zig's): else TVM's libraries would take them from here.
#undef TVM_FFI_DLL
#define TVM_FFI_DLL
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef FARM_VIRTUAL_PHONE
#include "kernel_faults.h"
#endif

namespace {

namespace ffi = tvm::ffi;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int32_t kRpcMagic = 0xFF271;         // also the "accepted" code
constexpr int32_t kRpcMismatch = kRpcMagic + 2;  // +1 (duplicate key) is a proxy's answer; a server never gives it
constexpr int32_t kTrackerMagic = 0x2F271;
constexpr int32_t kLongestKey = 64 * 1024;          // bytes; TVM's own clients stay below 100
constexpr int32_t kLongestReply = 16 * 1024 * 1024;  // bytes of one tracker message
constexpr int kHandshakeLimitS = 30;    // a slow link delivers 40 bytes in less; a dead one must not block us forever
constexpr int kTrackerReplyLimitS = 10;
constexpr int kTrackerRetryS = 5;       // as TVM's server
constexpr int kTrackerPollMs = 2000;    // as TVM's server: how often an idle server asks after its match key
constexpr double kUnusedKeyS = 6.0;     // as TVM's server: a key granted and not used for longer is replaced

bool g_silent = false;

void WriteLog(int line, const std::string& text) {
  char clock[16];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::strftime(clock, sizeof clock, "%H:%M:%S", &local);
  // One write per line: server and session share this descriptor.
  const std::string out = std::string("[") + clock + "] tvm_rpc.cc:" + std::to_string(line) + ": " + text + "\n";
  if (write(STDERR_FILENO, out.data(), out.size()) < 0) return;  // nobody reads the log any more: serve on
}

#define LOG_INFO(text) (g_silent ? (void)0 : WriteLog(__LINE__, (text)))
#define LOG_ERROR(text) WriteLog(__LINE__, (text))

[[noreturn]] void ThrowErrno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

// ---- options -------------------------------------------------------------------------------------------------------

struct Options {
  std::string host = "0.0.0.0";
  int port = 9090;
  int port_end = 9099;  // exclusive
  std::string tracker_host;
  int tracker_port = 0;
  std::string key;
  std::string custom_addr;
  std::string work_dir;
  bool silent = false;
};

const char kUsage[] =
    "Command line usage\n"
    "tvm_rpc server      start a TVM RPC server\n"
    "  --host=           address to listen on: an IP address or localhost [0.0.0.0]\n"
    "  --port=           first port to try [9090]\n"
    "  --port-end=       end of the ports to try, itself excluded [9099]\n"
    "  --tracker=        tracker to register at, as IP:PORT [none]\n"
    "  --key=            device key [empty]\n"
    "  --custom-addr=    IP address to tell the tracker instead of the one it sees [none]\n"
    "  --work-dir=       uploads go to <work-dir>/.cache, removed when a session ends [/data/local/tmp/rpc or ./rpc]\n"
    "  --silent          log errors only\n";

[[noreturn]] void RefuseOption(const std::string& complaint) {
  LOG_ERROR(complaint);
  LOG_ERROR(kUsage);
  std::exit(1);
}

bool IsAddress(const std::string& text) {
  unsigned char scratch[sizeof(in6_addr)];
  return text == "localhost" || inet_pton(AF_INET, text.c_str(), scratch) == 1 ||
         inet_pton(AF_INET6, text.c_str(), scratch) == 1;
}

bool ParsePort(const std::string& text, int* port) {
  if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos) return false;
  *port = std::stoi(text);
  return *port <= 65535;
}

// The first "--name=value" wins; unknown options are ignored, as in TVM's server.
std::string OptionValue(int argc, char** argv, const std::string& name) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(name + "=", 0) == 0) return argument.substr(name.size() + 1);
  }
  return "";
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) options.silent |= std::strncmp(argv[i], "--silent", 8) == 0;
  if (const std::string host = OptionValue(argc, argv, "--host"); !host.empty()) {
    if (!IsAddress(host)) RefuseOption("Wrong host address format.");
    options.host = host;
  }
  if (const std::string port = OptionValue(argc, argv, "--port"); !port.empty()) {
    if (!ParsePort(port, &options.port)) RefuseOption("Wrong port number.");
  }
  if (const std::string end = OptionValue(argc, argv, "--port-end"); !end.empty()) {
    if (!ParsePort(end, &options.port_end)) RefuseOption("Wrong port-end number.");
  }
  if (const std::string tracker = OptionValue(argc, argv, "--tracker"); !tracker.empty()) {
    const size_t colon = tracker.rfind(':');
    if (colon == std::string::npos || !IsAddress(tracker.substr(0, colon)) ||
        !ParsePort(tracker.substr(colon + 1), &options.tracker_port)) {
      RefuseOption("Wrong tracker address format.");
    }
    options.tracker_host = tracker.substr(0, colon);
  }
  options.key = OptionValue(argc, argv, "--key");
  // Such a key could never be matched: ':' and blanks separate fields of the handshake, quotes break the tracker's JSON.
  if (options.key.find_first_of(": \t\r\n\"\\") != std::string::npos) RefuseOption("Wrong key format.");
  options.custom_addr = OptionValue(argc, argv, "--custom-addr");
  if (!options.custom_addr.empty() && !IsAddress(options.custom_addr)) RefuseOption("Wrong custom address format.");
  options.work_dir = OptionValue(argc, argv, "--work-dir");
  return options;
}

// ---- sockets -------------------------------------------------------------------------------------------------------

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }
  ~Socket() { Close(); }

  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

  void SetReceiveLimit(int seconds) const {
    const timeval limit{seconds, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void SetNoDelay() const {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void Receive(void* buffer, size_t size) const {
    auto* bytes = static_cast<char*>(buffer);
    while (size > 0) {
      const ssize_t got = recv(fd_, bytes, size, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) ThrowErrno("receive");
      if (got == 0) throw std::runtime_error("the peer closed the connection");
      bytes += got;
      size -= static_cast<size_t>(got);
    }
  }
  int32_t ReceiveInt() const {
    int32_t value = 0;
    Receive(&value, sizeof value);
    return value;
  }
  void Send(const std::string& data) const {
    size_t done = 0;
    while (done < data.size()) {
      const ssize_t sent = send(fd_, data.data() + done, data.size() - done, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) ThrowErrno("send");
      done += static_cast<size_t>(sent);
    }
  }

 private:
  int fd_;
};

// TVM's wire is little-endian, and so is every ABI that Android still supports.
std::string Packed(int32_t value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); }

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  static Address Of(const std::string& host, int port) {
    Address address;
    const std::string literal = host == "localhost" ? "127.0.0.1" : host;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    if (inet_pton(AF_INET, literal.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(static_cast<uint16_t>(port));
      address.size = sizeof(sockaddr_in);
    } else {
      inet_pton(AF_INET6, literal.c_str(), &v6->sin6_addr);
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(static_cast<uint16_t>(port));
      address.size = sizeof(sockaddr_in6);
    }
    return address;
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  std::string Text() const {
    char host[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (storage.ss_family == AF_INET6) {
      const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage);
      inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
      port = ntohs(v6->sin6_port);
    } else if (storage.ss_family == AF_INET) {
      const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage);
      inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
      port = ntohs(v4->sin_port);
    }
    return std::string(host) + ":" + std::to_string(port);
  }
};

// ---- work dir and the functions a client calls ---------------------------------------------------------------------

class WorkDir {
 public:
  explicit WorkDir(const std::string& chosen) {
    std::error_code ignored;
    if (!chosen.empty()) {
      cache_ = std::filesystem::path(chosen) / ".cache";
    } else if (std::filesystem::is_directory("/data/local/tmp", ignored)) {
      cache_ = "/data/local/tmp/rpc";
    } else {
      cache_ = std::filesystem::current_path() / "rpc";
    }
  }
  // Like TVM's: these two folders, not those above them. Where somebody removed the rest, nothing comes back.
  void Create() const {
    std::error_code ignored;
    std::filesystem::create_directory(cache_.parent_path(), ignored);
    std::filesystem::create_directory(cache_, ignored);
  }
  void Remove() const {
    std::error_code failed;
    std::filesystem::remove_all(cache_, failed);
    if (failed) LOG_ERROR("Cannot remove " + cache_.string() + ": " + failed.message());
  }
  // A name with a slash is a path of the client's own choosing, as in TVM's server.
  std::string PathOf(const std::string& name) const {
    return name.find('/') == std::string::npos ? (cache_ / name).string() : name;
  }

 private:
  std::filesystem::path cache_;
};

void RequireSharedLibrary(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension();
  if (extension != ".so") {
    throw std::runtime_error("this phone has no linker for " + extension + " files: " + path +
                             "; export the library as .so on the host");
  }
}

// ---- functions of TVM, and for it ------------------------------------------------------------------------------------
// Both ways through the C interface: no C++ exception passes between this program and TVM's libraries, whose C++ library
// may be another one.

// A function of TVM by its name.
template <typename... Args>
ffi::Any Call(const char* name, Args&&... args) {
  const ffi::Function function = ffi::Function::GetGlobalRequired(name);
  ffi::AnyView given[sizeof...(args)];
  ffi::PackedArgs::Fill(given, std::forward<Args>(args)...);
  ffi::Any result;
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIFunctionCall(ffi::details::ObjectUnsafe::TVMFFIObjectPtrFromObjectRef(function),
                                             reinterpret_cast<TVMFFIAny*>(given), sizeof...(args),
                                             reinterpret_cast<TVMFFIAny*>(&result)));
  return result;
}

int CallTyped(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  static_cast<const ffi::Function*>(self)->CallPacked(reinterpret_cast<const ffi::AnyView*>(args), count,
                                                      reinterpret_cast<ffi::Any*>(result));
  TVM_FFI_SAFE_CALL_END();
}

// Gives TVM a function under a name.
template <typename F>
void Register(const char* name, F function) {
  auto* typed = new ffi::Function(ffi::Function::FromTyped(std::move(function)));
  const auto release = [](void* self) { delete static_cast<ffi::Function*>(self); };
  ffi::Function::SetGlobal(name, ffi::Function::FromExternC(typed, CallTyped, release), true);
}

void RegisterFunctions(const WorkDir& work_dir) {
  Register("tvm.rpc.server.workpath", [work_dir](const std::string& name) { return work_dir.PathOf(name); });
  Register("tvm.rpc.server.load_module", [work_dir](const std::string& name) -> ffi::Module {
    const std::string path = work_dir.PathOf(name);
    LOG_INFO("Load module from " + path + " ...");
    RequireSharedLibrary(path);
    ffi::Module module = Call("ffi.ModuleLoadFromFile", path).cast<ffi::Module>();
#ifdef FARM_VIRTUAL_PHONE
    module = farm::WithFaults(module);
#endif
    return module;
  });
  Register("tvm.rpc.server.download_linked_module", [work_dir](const std::string& name) -> ffi::Bytes {
    const std::string path = work_dir.PathOf(name);
    RequireSharedLibrary(path);
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::ostringstream content;
    content << file.rdbuf();
    return ffi::Bytes(content.str());
  });
}

// Back-ends that TVM builds as libraries of their own: there or not, depending on the bundle.
void LoadOptionalBackends() {
  for (const char* name : {"libtvm_runtime_opencl.so", "libtvm_runtime_vulkan.so"}) {
    if (dlopen(name, RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      LOG_INFO(std::string("Load additional library ") + name);
      continue;
    }
    const std::string reason = dlerror();
    const bool absent = reason.rfind(name, 0) == 0 || reason.find(std::string("\"") + name + "\"") != std::string::npos;
    if (!absent) LOG_ERROR(std::string("Cannot load ") + name + ": " + reason);
  }
}

// ---- tracker -------------------------------------------------------------------------------------------------------

// Registers this server at a tracker and keeps one match key on offer. Without a tracker the key itself is the match key.
class Tracker {
 public:
  Tracker(const Options& options, int port) : options_(options), port_(port), match_key_(options.key) {}

  bool used() const { return options_.tracker_port != 0; }
  const std::string& match_key() const { return match_key_; }
  void Disconnect() { socket_.Close(); }

  // Connects when not connected (retrying forever) and offers a fresh match key.
  void Offer() {
    while (used()) {
      try {
        if (!socket_.open()) Connect();
        OfferNewKey();
        return;
      } catch (const std::exception& error) {
        LOG_INFO(std::string("Tracker ") + options_.tracker_host + ":" + std::to_string(options_.tracker_port) + ": " +
                 error.what() + "; retry in " + std::to_string(kTrackerRetryS) + " sec");
        socket_.Close();
        sleep(kTrackerRetryS);
      }
    }
  }

  // Called while idle: replaces a match key that was granted to a client which never came.
  void Refresh() {
    const std::string pending = Exchange("[7]");
    if (pending.find("\"" + match_key_ + "\"") != std::string::npos) {
      last_pending_ = Clock::now();
    } else if (Seconds(Clock::now() - last_pending_).count() > kUnusedKeyS) {
      LOG_INFO("No incoming connections, regenerate key ...");
      OfferNewKey();
    }
  }

 private:
  void Connect() {
    const Address address = Address::Of(options_.tracker_host, options_.tracker_port);
    Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.open() || connect(socket.fd(), address.get(), address.size) != 0) ThrowErrno("cannot connect");
    socket.SetReceiveLimit(kTrackerReplyLimitS);
    socket.SetNoDelay();
    socket.Send(Packed(kTrackerMagic));
    if (socket.ReceiveInt() != kTrackerMagic) throw std::runtime_error("not a TVM RPC tracker");
    socket_ = std::move(socket);
    RequireSuccess(Exchange("[5, {\"key\": \"server:" + options_.key + "\", \"addr\": [" + CustomAddress() + ", \"" +
                            std::to_string(port_) + "\"]}]"));
    LOG_INFO("Connected to tracker " + address.Text());
  }

  void OfferNewKey() {
    std::random_device random;
    char digits[32];
    std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
    match_key_ = options_.key + ":" + digits;
    RequireSuccess(Exchange("[3, \"" + options_.key + "\", [" + std::to_string(port_) + ", \"" + match_key_ + "\"], " +
                            CustomAddress() + "]"));
    last_pending_ = Clock::now();
  }

  std::string CustomAddress() const {
    return options_.custom_addr.empty() ? "null" : "\"" + options_.custom_addr + "\"";
  }
  static void RequireSuccess(const std::string& reply) {
    if (reply != "0") throw std::runtime_error("the tracker refused: " + reply);
  }
  std::string Exchange(const std::string& json) const {
    socket_.Send(Packed(static_cast<int32_t>(json.size())) + json);
    const int32_t size = socket_.ReceiveInt();
    if (size < 0 || size > kLongestReply) throw std::runtime_error("the tracker sent a frame of wrong size");
    std::string reply(static_cast<size_t>(size), '\0');
    socket_.Receive(reply.data(), reply.size());
    return reply;
  }

  const Options& options_;
  const int port_;
  std::string match_key_;
  Socket socket_;
  Clock::time_point last_pending_;
};

// ---- server --------------------------------------------------------------------------------------------------------

struct Session {
  Socket socket;
  std::string peer;
  double timeout_s = 0;  // 0: none
};

// Words after the key, as "-timeout=10". Anything that is no positive number means no timeout.
double TimeoutOf(std::istringstream& words) {
  const std::string option = "-timeout=";
  double timeout_s = 0;
  for (std::string word; words >> word;) {
    if (word.rfind(option, 0) == 0) timeout_s = std::strtod(word.c_str() + option.size(), nullptr);
  }
  return std::isfinite(timeout_s) && timeout_s > 0 ? timeout_s : 0;
}

std::string SecondsText(double seconds) {
  std::ostringstream text;
  text << seconds;
  return text.str();
}

class Server {
 public:
  explicit Server(const Options& options) : options_(options), work_dir_(options.work_dir) {}

  int Run() {
    if (!Bind()) return 1;
    LoadOptionalBackends();
    RegisterFunctions(work_dir_);
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, &unblocked_);  // so that WaitFor() can wait for a child with a time limit
    Tracker tracker(options_, port_);
    for (;;) {
      tracker.Offer();
      Session session = Accept(&tracker);
      Serve(session, &tracker);
      LOG_INFO("End session with " + session.peer);
    }
  }

 private:
  bool Bind() {
    for (port_ = options_.port; port_ < options_.port_end; ++port_) {
      const Address address = Address::Of(options_.host, port_);
      Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int on = 1;
      const std::string where = options_.host + ":" + std::to_string(port_);
      if (socket.open() && setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
          bind(socket.fd(), address.get(), address.size) == 0 && listen(socket.fd(), SOMAXCONN) == 0) {
        Address bound;
        getsockname(socket.fd(), bound.get(), &bound.size);
        const std::string text = bound.Text();
        port_ = std::stoi(text.substr(text.rfind(':') + 1));  // differs from the wish when that was 0
        LOG_INFO("Bind to " + options_.host + ":" + std::to_string(port_));
        listener_ = std::move(socket);
        return true;
      }
      LOG_INFO("Bind failed to " + where + ": " + std::strerror(errno));
    }
    LOG_ERROR("No free port from " + std::to_string(options_.port) + " to " + std::to_string(options_.port_end - 1) +
              " on " + options_.host + ", exiting");
    return false;
  }

  Session Accept(Tracker* tracker) {
    for (;;) {
      try {
        WaitForPeer(tracker);
      } catch (const std::exception& error) {
        LOG_INFO(std::string("Lost the tracker: ") + error.what());
        tracker->Disconnect();
        tracker->Offer();
        continue;
      }
      Address address;
      Session session;
      session.socket = Socket(accept4(listener_.fd(), address.get(), &address.size, SOCK_CLOEXEC));
      if (!session.socket.open()) {
        LOG_INFO(std::string("Cannot accept: ") + std::strerror(errno));
        sleep(1);  // out of descriptors, most likely: do not spin
        continue;
      }
      session.peer = address.Text();
      try {
        if (Handshake(&session, tracker->match_key())) return session;
      } catch (const std::exception& error) {
        LOG_INFO("Handshake with " + session.peer + " failed: " + error.what());
      }
    }
  }

  void WaitForPeer(Tracker* tracker) const {
    for (;;) {
      pollfd listening{listener_.fd(), POLLIN, 0};
      const int ready = poll(&listening, 1, tracker->used() ? kTrackerPollMs : -1);
      if (ready > 0) return;
      if (ready == 0) tracker->Refresh();
    }
  }

  bool Handshake(Session* session, const std::string& match_key) const {
    const Socket& socket = session->socket;
    socket.SetReceiveLimit(kHandshakeLimitS);
    socket.SetNoDelay();
    if (socket.ReceiveInt() != kRpcMagic) {
      LOG_INFO("Client connected is not TVM RPC: " + session->peer);
      return false;
    }
    const int32_t size = socket.ReceiveInt();
    if (size <= 0 || size > kLongestKey) {
      LOG_INFO("Wrong client header length from " + session->peer);
      return false;
    }
    std::string header(static_cast<size_t>(size), '\0');
    socket.Receive(header.data(), header.size());
    std::istringstream words(header);
    std::string key;
    words >> key;
    if (key != "client:" + match_key) {
      socket.Send(Packed(kRpcMismatch));
      LOG_INFO("Mismatch key from " + session->peer);
      return false;
    }
    const std::string name = "server:" + options_.key;
    socket.Send(Packed(kRpcMagic) + Packed(static_cast<int32_t>(name.size())) + name);
    socket.SetReceiveLimit(0);
    session->timeout_s = TimeoutOf(words);
    LOG_INFO("New session from " + session->peer);
    return true;
  }

  void Serve(Session& session, Tracker* tracker) {
    const pid_t child = fork();
    if (child < 0) {
      LOG_ERROR(std::string("Cannot fork: ") + std::strerror(errno));
      return;
    }
    if (child == 0) {
      sigprocmask(SIG_SETMASK, &unblocked_, nullptr);
      std::signal(SIGINT, SIG_DFL);
      listener_.Close();
      tracker->Disconnect();
      _exit(RunSession(session));
    }
    int status = 0;
    if (WaitFor(child, session.timeout_s, &status)) {
      LOG_INFO("Child pid=" + std::to_string(child) + " exited, status =" + std::to_string(status));
      return;
    }
    kill(child, SIGTERM);
    WaitFor(child, 0, &status);
    LOG_INFO("Child pid=" + std::to_string(child) + " killed (timeout = " + SecondsText(session.timeout_s) +
             " sec), status = " + std::to_string(status));
  }

  int RunSession(Session& session) const {
    const Clock::time_point start = Clock::now();
    try {
      work_dir_.Create();
      Call("rpc.ServerLoop", session.socket.Release());
    } catch (const std::exception& error) {
      LOG_ERROR("Session with " + session.peer + " failed: " + error.what());
      return 1;
    }
    LOG_INFO("Finished serving " + session.peer + " after " +
             SecondsText(Seconds(Clock::now() - start).count()) + " sec");
    work_dir_.Remove();
    return 0;
  }

  // Whether the child ended within the limit (0: no limit). Needs SIGCHLD blocked.
  static bool WaitFor(pid_t child, double limit_s, int* status) {
    const auto deadline = Clock::now() + Seconds(limit_s);
    for (;;) {
      const pid_t ended = waitpid(child, status, limit_s > 0 ? WNOHANG : 0);
      if (ended == child) return true;
      if (ended < 0 && errno != EINTR) ThrowErrno("waitpid");
      if (limit_s <= 0) continue;
      const double left_s = Seconds(deadline - Clock::now()).count();
      if (left_s <= 0) return false;
      sigset_t children;
      sigemptyset(&children);
      sigaddset(&children, SIGCHLD);
      timespec left{};
      left.tv_sec = static_cast<time_t>(std::min(left_s, 3600.0));
      left.tv_nsec = static_cast<long>((left_s - std::floor(left_s)) * 1e9);
      sigtimedwait(&children, nullptr, &left);
    }
  }

  const Options options_;
  const WorkDir work_dir_;
  Socket listener_;
  int port_ = 0;
  sigset_t unblocked_{};
};

void OnInterrupt(int) {
  constexpr char text[] = "\nUser pressed Ctrl+C, Exiting\n";
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(1);
  _exit(1);
}

void LogOptions(const Options& options) {
  const std::string tracker =
      options.tracker_port == 0 ? "" : "('" + options.tracker_host + "', " + std::to_string(options.tracker_port) + ")";
  LOG_INFO("host        = " + options.host);
  LOG_INFO("port        = " + std::to_string(options.port));
  LOG_INFO("port_end    = " + std::to_string(options.port_end));
  LOG_INFO("tracker     = " + tracker);
  // With no tracker the key is what admits a session: it stays out of the log.
  LOG_INFO("key         = " + (tracker.empty() && !options.key.empty() ? "(not shown)" : options.key));
  LOG_INFO("custom_addr = " + options.custom_addr);
  LOG_INFO("work_dir    = " + options.work_dir);
  LOG_INFO(std::string("silent      = ") + (options.silent ? "True" : "False"));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "server") != 0) {
    LOG_INFO(kUsage);
    return 0;
  }
  prctl(PR_SET_NAME, "tvm_rpc");  // the loader's, where the bundle's own loader started it
  const Options options = ParseOptions(argc, argv);
  g_silent = options.silent;
  LogOptions(options);
  LOG_INFO("Starting CPP Server, Press Ctrl+C to stop.");
  struct sigaction on_interrupt {};
  on_interrupt.sa_handler = OnInterrupt;
  sigaction(SIGINT, &on_interrupt, nullptr);
  try {
    return Server(options).Run();
  } catch (const std::exception& error) {
    LOG_ERROR(std::string("Fatal: ") + error.what());
    return 1;
  }
}
