// Two libraries: the core, without torch, and the glue of one version of torch, which calls the core. The core exports the
// functions that are declared with GPUREDUCE_API, and no others. A glue that calls another one cannot be loaded: "undefined
// symbol".
#pragma once

#define GPUREDUCE_API __attribute__((visibility("default")))
