// What streams, memory and link share: one lock, one condition, and the streams' queues.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "machine.h"

namespace emulated {

// One point in a stream's queue.
struct Marker {
  bool has_passed = false;
  double device_s = 0;
};

struct Job {
  std::function<void()> run;
  // Marks and waits: done also when the device is lost, so that nobody waits for ever.
  bool is_order = false;
};

struct Stream {
  std::deque<Job> jobs;
  bool is_started = false;
  int64_t submitted = 0;
  int64_t finished = 0;
  double now_s = 0;
  int priority = 0;  // As it was asked for; the link does not look at it.
};

struct Link {
  double bytes_per_s = 0;  // 0: as fast as memory.
  double latency_s = 0;
  int64_t passing = -1;  // So many bytes more may pass; -1: the gate is open.
  int64_t waiting = 0;   // Copies that stand at the gate.
  double free_s = 0;     // By the streams' clocks.
  double free_wall_s = 0;
  double busy_s = 0;
  int64_t copies = 0;
  int64_t bytes_registered = 0;
  int64_t bytes_unregistered = 0;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<Stream, STREAM_COUNT> streams;
  StreamId next_stream = 1;
  std::array<Link, 2> links;
  std::string error;  // What the device was lost by.
  std::array<int64_t, FAULT_COUNT> faults{};
  std::unordered_map<uint64_t, int64_t> waits;  // Thread -> how often it was made to wait.
  int64_t kernels = 0;
  bool is_attached = false;
};

using Lock = std::unique_lock<std::mutex>;

Machine& machine();

// With the lock held:
void raise_error();
bool take_fault(Fault fault);
void push(StreamId stream, Job job);
std::shared_ptr<Marker> mark(StreamId stream);

// Of memory.cpp.
struct MemoryCounts {
  int64_t registrations;
  int64_t pinned_bytes;
  int64_t device_bytes;
};
MemoryCounts memory_counts();
bool register_host(void* host, size_t bytes);
bool unregister_host(void* host);

}  // namespace emulated
