// What torch asks of a device: memory, the guard with its streams and events, the hooks.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "torch_side.h"

namespace emulated {

namespace {

using c10::Device;
using c10::DeviceIndex;

const Device THE_DEVICE(c10::DeviceType::PrivateUse1, 0);

void free_device_memory(void* block) { free_block(static_cast<Block*>(block)); }

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, THE_DEVICE};
    Block* block = translated([&] { return emulated::allocate(bytes, current_stream()); });
    return {front_of(block), block, &free_device_memory, THE_DEVICE};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    copy_bytes(target, source, bytes);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::kCPU};
    void* host = translated([&] { return allocate_pinned(bytes); });
    return {host, host, &free_pinned, c10::kCPU};
  }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  Device exchangeDevice(Device) const override { return THE_DEVICE; }
  Device getDevice() const override { return THE_DEVICE; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return is_attached() ? 1 : 0; }

  c10::Stream getStream(Device) const override { return stream_of(current_stream()); }
  c10::Stream getDefaultStream(Device) const override { return stream_of(0); }
  c10::Stream getStreamFromGlobalPool(Device, bool is_high) const override {
    return stream_of(new_stream(is_high ? -1 : 0));
  }
  c10::Stream getNewStream(Device, int priority) const override {
    return stream_of(new_stream(priority));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(exchange_stream(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return translated([&] { return is_through(stream.id()); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    translated([&] { emulated::synchronize(stream.id()); });
  }
  void synchronizeDevice(const DeviceIndex) const override {
    translated([] { synchronize_all(); });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_context() != nullptr)
      use_on(static_cast<Block*>(data.get_context()), stream.id());
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    translated([&] { emulated::record(reinterpret_cast<Event**>(event), stream.id()); });
  }
  void block(void* event, const c10::Stream& stream) const override {
    translated([&] { emulated::block(static_cast<Event*>(event), stream.id()); });
  }
  bool queryEvent(void* event) const override {
    return translated([&] { return has_passed(static_cast<Event*>(event)); });
  }
  void synchronizeEvent(void* event) const override {
    translated([&] { emulated::synchronize(static_cast<Event*>(event)); });
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    destroy(static_cast<Event*>(event));
  }
  double elapsedTime(void* earlier, void* later, const DeviceIndex) const override {
    return milliseconds_between(static_cast<Event*>(earlier), static_cast<Event*>(later));
  }

 private:
  static c10::Stream stream_of(StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, THE_DEVICE, id);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return is_attached(); }
  bool hasPrimaryContext(DeviceIndex) const override { return is_attached(); }
  DeviceIndex deviceCount() const override { return is_attached() ? 1 : 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* host) const override { return is_registered(host, 1); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    static auto* one = new PinnedAllocator;
    return one;
  }
  Device getDeviceFromPtr(void*) const override { return THE_DEVICE; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

// At the loading of this library.
const bool IS_REGISTERED = [] {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, new DeviceAllocator);
  c10::impl::registerDeviceGuard(c10::DeviceType::PrivateUse1, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

void copy_bytes(void* target, const void* source, size_t bytes) {
  void* to = back_of(target);
  const void* from = back_of(source);
  translated([&] {
    submit(current_stream(), [to, from, bytes] { std::memmove(to, from, bytes); });
  });
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  c10::DataPtr data = impl->allocator()->allocate(bytes);
  const size_t kept = std::min(bytes, impl->nbytes());
  if (kept > 0) copy_bytes(data.get(), impl->data(), kept);
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(bytes);
}

}  // namespace emulated
