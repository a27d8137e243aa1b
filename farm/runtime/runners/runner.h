// What the runners share: errors, the values of inputs, a line per run, and the numbers of an output. C11.
#ifndef RUNNER_H
#define RUNNER_H

#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kWarmup = 5 };  // untimed runs before the others

// A type of elements: its size in bytes, and one as its little-endian bytes that inputs are filled with.
typedef struct {
  size_t size;
  unsigned char value[8];
} Element;

#define FLOAT32_HALF {4, {0, 0, 0, 0x3f}}
#define FLOAT64_HALF {8, {0, 0, 0, 0, 0, 0, 0xe0, 0x3f}}
#define WHOLE(size) {size, {1}}

static _Noreturn void Fail(const char *what, const char *detail) {
  fprintf(stderr, "%s%s\n", what, detail);
  exit(1);
}

static void *Allocate(size_t count, size_t size) {
  void *made = calloc(count ? count : 1, size);
  if (made == NULL) Fail("out of memory", "");
  return made;
}

static int Whole(const char *name, const char *text, long least) {
  char *end;
  const long value = strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < least || value > 1000000) {
    fprintf(stderr, "%s must be a whole number of %ld or more\n", name, least);
    exit(1);
  }
  return (int)value;
}

static void *Open(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (library == NULL) Fail("", dlerror());
  return library;
}

static void Fill(void *data, Element element, size_t count) {
  for (size_t i = 0; i < count; ++i) memcpy((char *)data + i * element.size, element.value, element.size);
}

static void Write(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0) Fail("cannot write ", path);
}

static double Milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

// Run so many times after the warm-up; then print each time, so that printing lies between no two runs, and that the
// CPU did all: no runner asks its library for anything else.
static void TimeRuns(int runs, void (*run)(void *), void *model) {
  double *ms = Allocate((size_t)runs, sizeof *ms);
  for (int i = -kWarmup; i < runs; ++i) {
    const double begin = Milliseconds();
    run(model);
    if (i >= 0) ms[i] = Milliseconds() - begin;
  }
  for (int i = 0; i < runs; ++i) printf("{\"ms\": %.6f}\n", ms[i]);
  printf("{\"ran_on\": {\"CPU\": null}}\n");
  free(ms);
}

#endif
