// Preloaded (LD_PRELOAD) into every program of an arm64 virtual phone, which itself are x86-64: starts AArch64 programs
// under qemu, as binfmt_misc does where the host's owner has set it up, and lets nothing else run that was pushed.
//
// It lies beside qemu-aarch64 and root/ (farm/simulation/arm64.py). Only the four calls with an argument vector are
// wrapped: that is what mksh, dash and toybox use. Between vfork and exec nothing may be allocated: the stack it is.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

extern char** environ;

// ARMv8.0: what the ABI arm64-v8a promises and no more. What a target does not switch on is an illegal instruction.
static char cpu[] = "QEMU_CPU=cortex-a72";
static char prefix[PATH_MAX + 32];  // QEMU_LD_PREFIX=<folder>/root
static char qemu[PATH_MAX];
static char name[] = "qemu-aarch64";
static int (*libc_execvpe)(const char*, char* const[], char* const[]);

__attribute__((constructor)) static void Prepare(void) {
  Dl_info self;
  *(void**)&libc_execvpe = dlsym(RTLD_NEXT, "execvpe");
  if (dladdr((void*)&Prepare, &self) == 0 || self.dli_fname == NULL) return;
  const char* slash = strrchr(self.dli_fname, '/');
  const int length = slash == NULL ? 0 : (int)(slash - self.dli_fname);
  snprintf(qemu, sizeof qemu, "%.*s/%s", length, self.dli_fname, name);
  snprintf(prefix, sizeof prefix, "QEMU_LD_PREFIX=%.*s/root", length, self.dli_fname);
}

// e_machine of an ELF file; EM_NONE for everything else, also for what cannot be read.
static int MachineOf(const char* path) {
  unsigned char head[20];
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return EM_NONE;
  const ssize_t got = read(file, head, sizeof head);
  close(file);
  if (got != (ssize_t)sizeof head || memcmp(head, ELFMAG, SELFMAG) != 0) return EM_NONE;
  return head[18] | head[19] << 8;
}

// Whether a file is on the phone's /data, where everything is that did not come with the phone.
static int WasPushed(const char* path) {
  const char* data = getenv("FARM_ARM64_DATA");
  char real[PATH_MAX];
  if (data == NULL || realpath(path, real) == NULL) return 0;
  const size_t length = strlen(data);
  return strncmp(real, data, length) == 0 && real[length] == '/';
}

static int Execute(const char* path, char* const argv[], char* const envp[]) {
  return (int)syscall(SYS_execve, path, argv, envp);
}

static int Emulate(const char* path, char* const argv[], char* const envp[]) {
  size_t words = 0;
  size_t variables = 0;
  while (argv[words] != NULL) ++words;
  while (envp[variables] != NULL) ++variables;
  char* arguments[words + 3];
  char* environment[variables + 3];
  size_t filled = 0;
  environment[filled++] = prefix;
  environment[filled++] = cpu;
  for (size_t i = 0; i < variables; ++i) {
    if (strncmp(envp[i], "LD_PRELOAD=", 11) != 0 && strncmp(envp[i], "QEMU_", 5) != 0) environment[filled++] = envp[i];
  }
  environment[filled] = NULL;
  arguments[0] = words > 0 ? argv[0] : name;  // what `ps` shows: the program, as on a phone
  arguments[1] = (char*)path;
  for (size_t i = 1; i <= words; ++i) arguments[i + 1] = argv[i];  // the end too
  if (words == 0) arguments[2] = NULL;
  const struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);  // a phone leaves no core files; qemu would write its own
  return Execute(qemu, arguments, environment);
}

int execve(const char* path, char* const argv[], char* const envp[]) {
  const int machine = MachineOf(path);
  if (machine == EM_AARCH64 && access(path, X_OK) != 0) return -1;
  if (machine == EM_AARCH64) return Emulate(path, argv, envp);
  if (machine != EM_NONE && WasPushed(path)) {
    errno = ENOEXEC;
    return -1;
  }
  return Execute(path, argv, envp);
}

int execv(const char* path, char* const argv[]) { return execve(path, argv, environ); }

// Where PATH leads: the first program of that name. Nothing when there is none.
static const char* Find(const char* file, char found[PATH_MAX]) {
  struct stat about;
  if (strchr(file, '/') != NULL) return file;
  for (const char* rest = getenv("PATH"); rest != NULL && *rest != '\0'; rest += *rest == ':') {
    const int length = (int)strcspn(rest, ":");
    const int size = snprintf(found, PATH_MAX, "%.*s%s%s", length, rest, length > 0 ? "/" : "./", file);
    if (size < PATH_MAX && stat(found, &about) == 0 && S_ISREG(about.st_mode) && access(found, X_OK) == 0) return found;
    rest += length;
  }
  return "";
}

int execvpe(const char* file, char* const argv[], char* const envp[]) {
  char found[PATH_MAX];
  const char* path = Find(file, found);
  // The C library knows what to do with scripts, and what is wrong when there is nothing.
  return MachineOf(path) != EM_NONE ? execve(path, argv, envp) : libc_execvpe(file, argv, envp);
}

int execvp(const char* file, char* const argv[]) { return execvpe(file, argv, environ); }

int uname(struct utsname* about) {
  const int result = (int)syscall(SYS_uname, about);
  if (result == 0) strcpy(about->machine, "aarch64");
  return result;
}
