#include "bindings.h"

NB_MODULE(_native, module) {
  module.doc() = "draftproof's CPU engine; draftproof.backends.cpu is what to use.";
  draftproof::bind_kernels(module);
  draftproof::bind_gguf(module);
  draftproof::bind_model(module);
}
