// `import seamseg._C` loads the library; the kernels register themselves while it loads.
#include <Python.h>

PyMODINIT_FUNC PyInit__C() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", "CPU kernels of seamseg", -1, nullptr};
  return PyModule_Create(&definition);
}
