// Times an ONNX model under a libonnxruntime.so: ort_runner LIBRARY MODEL RUNS THREADS OUTPUT
//
// Prints a JSON line per run, {"ms": 1.25}, after five untimed runs, and writes the first output's raw numbers to OUTPUT.
// Inputs of fixed shapes are filled with 0.5, or 1 for whole numbers. Built without ONNX Runtime's headers, which its
// wheel lacks: the C API is a table of functions whose order never changes, of which a few are called by their place.
//
//     cc -O2 -std=c11 -o ort_runner ort_runner.c -ldl
#include "runner.h"

enum { kApiVersion = 17 };  // of the table's first entries: those of every release since 2024
enum { kWarning = 2, kAllOptimizations = 99 };

// Places in the table.
enum {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSession = 7,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetGraphOptimizationLevel = 23,
  kSetIntraOpNumThreads = 24,
  kSessionGetInputCount = 30,
  kSessionGetOutputCount = 31,
  kSessionGetInputTypeInfo = 33,
  kSessionGetInputName = 36,
  kSessionGetOutputName = 37,
  kCreateTensorAsOrtValue = 48,
  kGetTensorMutableData = 51,
  kCastTypeInfoToTensorInfo = 55,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorShapeElementCount = 64,
  kGetTensorTypeAndShape = 65,
  kGetAllocatorWithDefaultOptions = 78,
};

// ONNX's tensor types by their number; a size of 0: a type that is not filled here.
static const Element kElements[] = {
    {0}, FLOAT32_HALF, WHOLE(1), WHOLE(1), WHOLE(2), WHOLE(2), WHOLE(4), WHOLE(8),
    {0}, WHOLE(1), {2, {0, 0x38}}, FLOAT64_HALF, WHOLE(4), WHOLE(8),
};

typedef struct {
  void *session;
  size_t inputs, outputs;
  char **input_names, **output_names;
  void **values, **results;
} Model;

static void *const *api;

static void Check(void *status) {
  if (status != NULL) Fail("", ((const char *(*)(void *))api[kGetErrorMessage])(status));
}

// Calls the function at a place, which takes these types; each returns a status, null for success.
#define CALL(place, types, ...) Check(((void *(*) types)api[place])(__VA_ARGS__))

static Element ElementOf(int type) {
  const Element element = type >= 0 && (size_t)type < sizeof kElements / sizeof *kElements ? kElements[type] : kElements[0];
  if (element.size == 0) Fail("an input or output is of a type that is not handled here", "");
  return element;
}

static void *Input(void *session, size_t index, void *allocator) {
  void *info, *value, *data;
  const void *tensor;
  int type;
  size_t rank, count = 1;
  CALL(kSessionGetInputTypeInfo, (void *, size_t, void **), session, index, &info);
  CALL(kCastTypeInfoToTensorInfo, (void *, const void **), info, &tensor);
  if (tensor == NULL) Fail("an input is no tensor", "");
  CALL(kGetTensorElementType, (const void *, int *), tensor, &type);
  CALL(kGetDimensionsCount, (const void *, size_t *), tensor, &rank);
  int64_t *shape = Allocate(rank, sizeof *shape);
  CALL(kGetDimensions, (const void *, int64_t *, size_t), tensor, shape, rank);
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] < 1) shape[i] = 1;  // an open dimension
    count *= (size_t)shape[i];
  }
  const Element element = ElementOf(type);
  CALL(kCreateTensorAsOrtValue, (void *, const int64_t *, size_t, int, void **), allocator, shape, rank, type, &value);
  CALL(kGetTensorMutableData, (void *, void **), value, &data);
  Fill(data, element, count);
  free(shape);
  return value;
}

static void WriteOutput(void *value, const char *path) {
  void *info, *data;
  int type;
  size_t count;
  CALL(kGetTensorTypeAndShape, (void *, void **), value, &info);
  CALL(kGetTensorElementType, (const void *, int *), info, &type);
  CALL(kGetTensorShapeElementCount, (const void *, size_t *), info, &count);
  CALL(kGetTensorMutableData, (void *, void **), value, &data);
  Write(path, data, ElementOf(type).size * count);
}

static void Run(void *model) {
  const Model *m = model;
  CALL(kRun, (void *, void *, char **, void **, size_t, char **, size_t, void **), m->session, NULL, m->input_names,
       m->values, m->inputs, m->output_names, m->outputs, m->results);
}

int main(int argc, char **argv) {
  if (argc != 6) Fail("usage: ort_runner LIBRARY MODEL RUNS THREADS OUTPUT", "");
  const int runs = Whole("RUNS", argv[3], 1), threads = Whole("THREADS", argv[4], 0);
  const struct {
    void *const *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
  } *(*base)(void) = dlsym(Open(argv[1]), "OrtGetApiBase");
  if (base == NULL) Fail("no ONNX Runtime: ", argv[1]);
  api = base()->get_api(kApiVersion);
  if (api == NULL) Fail("an ONNX Runtime of before 2024: ", argv[1]);
  void *env, *options, *allocator;
  Model m = {0};
  CALL(kCreateEnv, (int, const char *, void **), kWarning, "ort_runner", &env);
  CALL(kCreateSessionOptions, (void **), &options);
  CALL(kSetGraphOptimizationLevel, (void *, int), options, kAllOptimizations);
  CALL(kSetIntraOpNumThreads, (void *, int), options, threads);
  CALL(kCreateSession, (void *, const char *, void *, void **), env, argv[2], options, &m.session);
  CALL(kGetAllocatorWithDefaultOptions, (void **), &allocator);
  CALL(kSessionGetInputCount, (void *, size_t *), m.session, &m.inputs);
  CALL(kSessionGetOutputCount, (void *, size_t *), m.session, &m.outputs);
  m.input_names = Allocate(m.inputs, sizeof *m.input_names);
  m.values = Allocate(m.inputs, sizeof *m.values);
  m.output_names = Allocate(m.outputs, sizeof *m.output_names);
  m.results = Allocate(m.outputs, sizeof *m.results);
  for (size_t i = 0; i < m.inputs; ++i) {
    CALL(kSessionGetInputName, (void *, size_t, void *, char **), m.session, i, allocator, &m.input_names[i]);
    m.values[i] = Input(m.session, i, allocator);
  }
  for (size_t i = 0; i < m.outputs; ++i) {
    CALL(kSessionGetOutputName, (void *, size_t, void *, char **), m.session, i, allocator, &m.output_names[i]);
  }
  TimeRuns(runs, Run, &m);
  WriteOutput(m.results[0], argv[5]);
  return 0;
}
