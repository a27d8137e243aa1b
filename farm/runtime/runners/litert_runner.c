// Times a model under LiteRT's library: litert_runner LIBRARY MODEL RUNS OUTPUT
//
// Prints a JSON line per run, {"ms": 1.25}, after five untimed runs, and writes the first output's raw numbers to OUTPUT.
// The first signature runs on the CPU; inputs are filled with 0.5, or 1 for whole numbers. Built without LiteRT's
// headers, which its wheel lacks, against the C API that libLiteRt.so exports since 2.2; the two structures are part of
// its stable interface.
//
//     cc -O2 -std=c11 -o litert_runner litert_runner.c -ldl
#include "runner.h"

enum { kMaxRank = 8, kCpu = 1, kRead = 0, kWriteLock = 1 };

typedef struct {
  unsigned int rank : 7, has_strides : 1;
  int32_t dimensions[kMaxRank];
  uint32_t strides[kMaxRank];
} Layout;

typedef struct {
  int type;
  Layout layout;
} TensorType;

// LiteRT's element types by their number; a size of 0: a type that is not filled here.
static const Element kElements[] = {
    {0}, FLOAT32_HALF, WHOLE(4), WHOLE(1), WHOLE(8), {0}, WHOLE(1), WHOLE(2), {0}, WHOLE(1),
    {2, {0, 0x38}}, FLOAT64_HALF, {0}, WHOLE(8), {0}, {0}, WHOLE(4), WHOLE(2),
};

typedef struct {
  void *compiled;
  size_t inputs, outputs;
  void **values, **results;
} Model;

static void *library;

static void *Function(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) Fail("the library has no ", name);
  return found;
}

// Calls a function that takes these types; each returns a status, 0 for success.
#define CALL(name, types, ...)                                                       \
  do {                                                                               \
    if (((int (*) types)Function(#name))(__VA_ARGS__) != 0) Fail(#name, " failed");  \
  } while (0)

// The memory of a buffer while it is locked.
static void *Locked(void *buffer, int mode) {
  void *data;
  CALL(LiteRtLockTensorBuffer, (void *, void **, int), buffer, &data, mode);
  return data;
}

static size_t SizeOf(void *buffer) {
  size_t size;
  CALL(LiteRtGetTensorBufferPackedSize, (void *, size_t *), buffer, &size);
  return size;
}

static void *Buffer(void *env, void *tensor, void *requirements) {
  TensorType type;
  void *buffer;
  CALL(LiteRtGetRankedTensorType, (void *, TensorType *), tensor, &type);
  for (unsigned int i = 0; i < type.layout.rank; ++i) {
    if (type.layout.dimensions[i] < 1) Fail("a tensor has an open dimension", "");
  }
  CALL(LiteRtCreateManagedTensorBufferFromRequirements, (void *, const TensorType *, void *, void **), env, &type,
       requirements, &buffer);
  return buffer;
}

static void *Input(void *env, void *compiled, void *signature, size_t index) {
  void *tensor, *requirements;
  TensorType type;
  CALL(LiteRtGetSignatureInputTensorByIndex, (void *, size_t, void **), signature, index, &tensor);
  CALL(LiteRtGetRankedTensorType, (void *, TensorType *), tensor, &type);
  const int known = type.type >= 0 && (size_t)type.type < sizeof kElements / sizeof *kElements;
  const Element element = kElements[known ? type.type : 0];
  if (element.size == 0) Fail("an input is of a type that is not filled here", "");
  CALL(LiteRtGetCompiledModelInputBufferRequirements, (void *, size_t, size_t, void **), compiled, 0, index, &requirements);
  void *buffer = Buffer(env, tensor, requirements);
  Fill(Locked(buffer, kWriteLock), element, SizeOf(buffer) / element.size);
  CALL(LiteRtUnlockTensorBuffer, (void *), buffer);
  return buffer;
}

static void *Output(void *env, void *compiled, void *signature, size_t index) {
  void *tensor, *requirements;
  CALL(LiteRtGetSignatureOutputTensorByIndex, (void *, size_t, void **), signature, index, &tensor);
  CALL(LiteRtGetCompiledModelOutputBufferRequirements, (void *, size_t, size_t, void **), compiled, 0, index, &requirements);
  return Buffer(env, tensor, requirements);
}

static void Run(void *model) {
  const Model *m = model;
  CALL(LiteRtRunCompiledModel, (void *, size_t, size_t, void **, size_t, void **), m->compiled, 0, m->inputs, m->values,
       m->outputs, m->results);
}

int main(int argc, char **argv) {
  if (argc != 5) Fail("usage: litert_runner LIBRARY MODEL RUNS OUTPUT", "");
  const int runs = Whole("RUNS", argv[3], 1);
  library = Open(argv[1]);
  void *env, *model, *options, *signature;
  Model m = {0};
  CALL(LiteRtCreateEnvironment, (int, const void *, void **), 0, NULL, &env);
  CALL(LiteRtCreateModelFromFile, (void *, const char *, void **), env, argv[2], &model);
  CALL(LiteRtCreateOptions, (void **), &options);
  CALL(LiteRtSetOptionsHardwareAccelerators, (void *, int), options, kCpu);
  CALL(LiteRtCreateCompiledModel, (void *, void *, void *, void **), env, model, options, &m.compiled);
  CALL(LiteRtGetModelSignature, (void *, size_t, void **), model, 0, &signature);
  CALL(LiteRtGetNumSignatureInputs, (void *, size_t *), signature, &m.inputs);
  CALL(LiteRtGetNumSignatureOutputs, (void *, size_t *), signature, &m.outputs);
  m.values = Allocate(m.inputs, sizeof *m.values);
  m.results = Allocate(m.outputs, sizeof *m.results);
  for (size_t i = 0; i < m.inputs; ++i) m.values[i] = Input(env, m.compiled, signature, i);
  for (size_t i = 0; i < m.outputs; ++i) m.results[i] = Output(env, m.compiled, signature, i);
  TimeRuns(runs, Run, &m);
  Write(argv[4], Locked(m.results[0], kRead), SizeOf(m.results[0]));
  return 0;
}
