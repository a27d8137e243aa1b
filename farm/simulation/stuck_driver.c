// stuck_driver SECONDS: spins for that long and cannot be killed by a phone's shell user, SIGKILL included.
//
// Set-uid root, so the shell user may not signal it: to who reaps on the phone that looks like a process that hangs in a
// driver. The end of the phone ends it, and so does the lab.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int count, char** words) {
  struct timespec now, began;
  const double seconds = count > 1 ? atof(words[1]) : 0;
  if (setresgid(0, 0, 0) != 0 || setresuid(0, 0, 0) != 0) return 1;
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_IGN);
  clock_gettime(CLOCK_MONOTONIC, &began);
  do {
    for (volatile int spin = 0; spin < 1000000; ++spin) continue;
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec - began.tv_sec + (now.tv_nsec - began.tv_nsec) * 1e-9 < seconds);
  return 0;
}
