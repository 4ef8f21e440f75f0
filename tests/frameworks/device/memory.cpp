// Memory of the device and page-locked memory of the host.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "streams.h"

namespace emulated {

struct Block {
  char* front;
  size_t bytes;
  StreamId stream;
  std::set<StreamId> others;                      // Streams that use it as well.
  std::vector<std::shared_ptr<Marker>> awaited;   // Once it is free: where they are through.
};

namespace {

constexpr size_t DEVICE_BYTES = size_t{16} << 30;
constexpr size_t ALIGNMENT = 512;
constexpr size_t PAGE = 4096;
constexpr int FRESH = 0xCD;
constexpr int FREED = 0xDD;

struct Range {
  size_t bytes;
  bool is_ours;  // Taken from `allocate_pinned`.
};

// What `free_pinned` was given, and where all streams must have passed before it goes.
struct Parting {
  void* host;
  std::vector<std::shared_ptr<Marker>> awaited;
};

// Guarded by the machine's lock.
struct Memory {
  char* front = nullptr;
  char* back = nullptr;
  size_t taken = 0;  // From here on nothing was ever allocated.
  size_t used = 0;
  std::map<std::pair<StreamId, size_t>, std::vector<Block*>> free;
  std::vector<Block*> leaving;  // Free, when the other streams that use them are through.
  std::map<const char*, Range> ranges;
  std::vector<Parting> partings;
};

char* map_file(int file, int protection) {
  void* at = mmap(nullptr, DEVICE_BYTES, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) throw OutOfMemory("emulated device: no room for its memory");
  return static_cast<char*>(at);
}

Memory& memory() {
  static Memory* one = [] {
    const int file = memfd_create("emulated-device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, DEVICE_BYTES) != 0)
      throw OutOfMemory("emulated device: no file for its memory");
    auto* made = new Memory;
    made->front = map_file(file, PROT_NONE);
    made->back = map_file(file, PROT_READ | PROT_WRITE);
    close(file);
    return made;
  }();
  return *one;
}

// Eight sizes between a power of two and the next: what is freed fits what is asked for again.
size_t size_class(size_t bytes) {
  size_t step = ALIGNMENT;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

void fill(const Block* block, int byte) {
  void* at = back_of(block->front);
  push(block->stream, {[at, byte, bytes = block->bytes] { std::memset(at, byte, bytes); }});
}

void recycle(Block* block) {
  fill(block, FREED);
  memory().free[{block->stream, block->bytes}].push_back(block);
}

bool have_passed(const std::vector<std::shared_ptr<Marker>>& markers) {
  for (const auto& marker : markers)
    if (!marker->has_passed) return false;
  return true;
}

void recycle_leaving() {
  std::vector<Block*>& leaving = memory().leaving;
  for (auto at = leaving.begin(); at != leaving.end();) {
    if (have_passed((*at)->awaited)) {
      recycle(*at);
      at = leaving.erase(at);
    } else {
      ++at;
    }
  }
}

Block* fresh_block(size_t bytes, StreamId stream) {
  Memory& all = memory();
  if (all.taken + bytes > DEVICE_BYTES) throw OutOfMemory("emulated device: out of memory");
  auto* block = new Block{all.front + all.taken, bytes, stream, {}, {}};
  all.taken += bytes;
  fill(block, FRESH);
  return block;
}

const std::pair<const char* const, Range>* range_with(const char* host) {
  const auto& ranges = memory().ranges;
  auto after = ranges.upper_bound(host);
  if (after == ranges.begin()) return nullptr;
  const auto& found = *std::prev(after);
  return host < found.first + found.second.bytes ? &found : nullptr;
}

bool add_range(const char* host, size_t bytes, bool is_ours) {
  auto& ranges = memory().ranges;
  auto next = ranges.lower_bound(host);
  const bool is_free =
      range_with(host) == nullptr && (next == ranges.end() || host + bytes <= next->first);
  if (is_free && bytes > 0) ranges[host] = {bytes, is_ours};
  return is_free && bytes > 0;
}

void free_parted() {
  std::vector<Parting>& partings = memory().partings;
  for (auto at = partings.begin(); at != partings.end();) {
    if (have_passed(at->awaited)) {
      memory().ranges.erase(static_cast<char*>(at->host));
      std::free(at->host);
      at = partings.erase(at);
    } else {
      ++at;
    }
  }
}

}  // namespace

Block* allocate(size_t bytes, StreamId stream) {
  Lock lock(machine().mutex);
  raise_error();
  if (take_fault(ALLOCATION)) throw OutOfMemory("emulated device: out of memory");
  recycle_leaving();
  const size_t size = size_class(bytes);
  std::vector<Block*>& free = memory().free[{stream, size}];
  Block* block = nullptr;
  if (free.empty()) {
    block = fresh_block(size, stream);
  } else {
    block = free.back();
    free.pop_back();
  }
  memory().used += size;
  return block;
}

void* front_of(const Block* block) { return block->front; }

void free_block(Block* block) {
  Lock lock(machine().mutex);
  memory().used -= block->bytes;
  block->awaited.clear();
  for (StreamId other : std::exchange(block->others, {})) block->awaited.push_back(mark(other));
  if (block->awaited.empty())
    recycle(block);
  else
    memory().leaving.push_back(block);
}

void use_on(Block* block, StreamId stream) {
  Lock lock(machine().mutex);
  if (stream != block->stream) block->others.insert(stream);
}

void* back_of(const void* front) {
  const Memory& all = memory();
  return front == nullptr ? nullptr : all.back + (static_cast<const char*>(front) - all.front);
}

bool register_host(void* host, size_t bytes) {
  Lock lock(machine().mutex);
  return !take_fault(REGISTRATION) && add_range(static_cast<char*>(host), bytes, false);
}

bool unregister_host(void* host) {
  Lock lock(machine().mutex);
  const auto found = memory().ranges.find(static_cast<char*>(host));
  if (found == memory().ranges.end() || found->second.is_ours) return false;
  memory().ranges.erase(found);
  return true;
}

bool is_registered(const void* host, size_t bytes) {
  Lock lock(machine().mutex);
  const char* at = static_cast<const char*>(host);
  const auto* range = range_with(at);
  return range != nullptr && at + bytes <= range->first + range->second.bytes;
}

void* allocate_pinned(size_t bytes) {
  const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
  void* host = std::aligned_alloc(PAGE, whole);
  if (host == nullptr) throw OutOfMemory("emulated device: no page-locked memory");
  Lock lock(machine().mutex);
  free_parted();
  add_range(static_cast<char*>(host), whole, true);
  return host;
}

void free_pinned(void* host) {
  Lock lock(machine().mutex);
  Parting parting{host, {}};
  for (StreamId id = 0; id < STREAM_COUNT; ++id)
    if (machine().streams[id].is_started) parting.awaited.push_back(mark(id));
  memory().partings.push_back(std::move(parting));
  free_parted();
}

MemoryCounts memory_counts() {
  Lock lock(machine().mutex);
  free_parted();
  MemoryCounts counts{0, 0, static_cast<int64_t>(memory().used)};
  for (const auto& [host, range] : memory().ranges) {
    if (range.is_ours)
      counts.pinned_bytes += static_cast<int64_t>(range.bytes);
    else
      ++counts.registrations;
  }
  return counts;
}

}  // namespace emulated
