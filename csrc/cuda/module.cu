// `import seamseg._C_cuda` loads the library; the kernels register themselves while it loads.
#include <Python.h>

#ifndef _WIN32
#pragma weak PyModule_Create2
#endif

PyMODINIT_FUNC PyInit__C_cuda() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C_cuda", "CUDA kernels of seamseg", -1, nullptr};
  return PyModule_Create(&definition);
}
