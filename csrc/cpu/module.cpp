// `import seamseg._C` loads the library; schemas and kernels register themselves while it loads. A program without
// Python loads it with dlopen: the function of Python is then missing, and is not called.
#include <Python.h>

#include "../tensor.h"

#ifndef _WIN32
#pragma weak PyModule_Create2
#endif

STABLE_TORCH_LIBRARY(seamseg, m) {
  // seamseg/ops/_library.py reads the same file, for processes without this library
  static constexpr const char* schemas[] = {
#include "../../seamseg/ops/schemas.inc"
  };
  for (const char* schema : schemas) m.def(schema);
}

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "CPU kernels of seamseg", -1, nullptr};
  return PyModule_Create(&definition);
}
