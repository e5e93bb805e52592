// The parts of the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace draftproof {

void bind_kernels(nanobind::module_& module);
void bind_gguf(nanobind::module_& module);
void bind_model(nanobind::module_& module);

}  // namespace draftproof
