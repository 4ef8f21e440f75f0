// What the emulated device is made of: memory, streams, events and the link to the host. Nothing
// of torch is known here.
//
//   memory   one file in memory, mapped twice: the front, which tensors show and no host code may
//            touch, and the back, where kernels find the same bytes
//   streams  a thread and a queue each; jobs of one stream run in their order
//   events   a point in a stream's queue that has been passed or not
//   link     two directions; each carries pieces of all streams' copies, at a stated pace
//   clock    a stream has a time of its own, in seconds, which only copies and waits move on:
//            what a copy costs is known exactly, whatever the host is doing
//
// An error of a job makes the device lost: its other jobs are dropped, and every call raises the
// error, until `reset`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace emulated {

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using StreamId = int64_t;
constexpr StreamId STREAM_COUNT = 32;

enum Direction { TO_HOST = 0, TO_DEVICE = 1 };
enum Fault { COPY = 0, WAIT = 1, ALLOCATION = 2, REGISTRATION = 3, DEVICE = 4, FAULT_COUNT = 5 };

// ------------------------------------------------------------------------------------ memory

struct Block;

// Bytes for use on a stream. Those that the stream has freed come first, at once, as in CUDA's
// caching allocator; until they are written they hold 0xDD, and fresh ones 0xCD.
Block* allocate(size_t bytes, StreamId stream);
void* front_of(const Block* block);
// Jobs that its own stream has still to do come before the bytes are poisoned; those of another
// stream do not, unless `use_on` named that stream.
void free_block(Block* block);
void use_on(Block* block, StreamId stream);
// Where kernels find what a tensor shows at `front`.
void* back_of(const void* front);

// Page-locked memory of the host: whole ranges that were registered, or taken from here.
bool is_registered(const void* host, size_t bytes);
void* allocate_pinned(size_t bytes);
void free_pinned(void* host);

// ----------------------------------------------------------------------------------- streams

StreamId current_stream();
StreamId exchange_stream(StreamId stream);
StreamId new_stream(int priority);

// A kernel. Raises what has befallen the device so far.
void submit(StreamId stream, std::function<void()> kernel);
// `host` is the one of target and source that is not on the device. Returns at once when
// `non_blocking` and the host's range is registered; else the caller waits for the stream.
void transfer(StreamId stream, Direction direction, void* target, const void* source,
              const void* host, size_t bytes, bool non_blocking);
bool is_through(StreamId stream);
void synchronize(StreamId stream);
void synchronize_all();

// ------------------------------------------------------------------------------------ events

struct Event;

void record(Event** event, StreamId stream);
void block(Event* event, StreamId stream);
bool has_passed(Event* event);
void synchronize(Event* event);
void destroy(Event* event);
// By the streams' own clocks.
double milliseconds_between(Event* earlier, Event* later);

// The device is there: else the process is as one with torch for it, on a machine without it.
bool is_attached();

}  // namespace emulated
