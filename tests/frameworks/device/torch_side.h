// What the two files that know torch share.
#pragma once

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "machine.h"

namespace emulated {

// Errors as torch's other devices raise them: AcceleratorError, OutOfMemoryError.
template <typename Call>
auto translated(Call call) -> decltype(call()) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    return call();
  } catch (const OutOfMemory& error) {
    throw c10::OutOfMemoryError(here, error.what());
  } catch (const DeviceError& error) {
    throw c10::AcceleratorError(here, 1, error.what());
  }
}

// On the current stream, by front addresses.
void copy_bytes(void* target, const void* source, size_t bytes);
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace emulated
