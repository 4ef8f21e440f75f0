// Streams, events and the link.
#include "streams.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace emulated {

namespace {

constexpr size_t PIECE_BYTES = 256 * 1024;

thread_local StreamId the_current_stream = 0;

using Clock = std::chrono::steady_clock;

double wall_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void sleep_until(double due_s) {
  const auto due = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due_s));
  std::this_thread::sleep_until(Clock::time_point(due));
}

// A stream's thread. What a job held is freed outside of the lock.
void run(Stream& stream) {
  Machine& m = machine();
  Lock lock(m.mutex);
  for (;;) {
    m.changed.wait(lock, [&] { return !stream.jobs.empty(); });
    Job job = std::move(stream.jobs.front());
    stream.jobs.pop_front();
    const bool is_done = job.is_order || m.error.empty();
    lock.unlock();
    std::string error;
    try {
      if (is_done) job.run();
    } catch (const std::exception& raised) {
      error = raised.what();
    }
    job = Job();
    lock.lock();
    if (m.error.empty()) m.error = error;
    ++stream.finished;
    m.changed.notify_all();
  }
}

void wait_for(Lock& lock, StreamId id) {
  Machine& m = machine();
  const Stream& stream = m.streams[id];
  const int64_t last = stream.submitted;
  m.changed.wait(lock, [&] { return stream.finished >= last; });
}

void count_wait() { ++machine().waits[static_cast<uint64_t>(pthread_self())]; }

// The next piece of a copy: how many bytes may go, and when they are through.
struct Piece {
  size_t bytes;
  double due_s;
};

Piece admit(Stream& stream, Link& link, size_t bytes) {
  Machine& m = machine();
  Lock lock(m.mutex);
  if (link.passing == 0) {
    ++link.waiting;
    m.changed.notify_all();
    m.changed.wait(lock, [&] { return link.passing != 0 || !m.error.empty(); });
    --link.waiting;
  }
  if (!m.error.empty()) throw DeviceError(m.error);
  if (link.passing > 0) {
    bytes = std::min(bytes, static_cast<size_t>(link.passing));
    link.passing -= static_cast<int64_t>(bytes);
  }
  const double cost_s = link.bytes_per_s > 0 ? static_cast<double>(bytes) / link.bytes_per_s : 0;
  link.busy_s += cost_s;
  stream.now_s = link.free_s = std::max(stream.now_s, link.free_s) + cost_s;
  link.free_wall_s = std::max(wall_s(), link.free_wall_s) + cost_s;
  return {bytes, link.free_wall_s};
}

// The bytes of a piece are read when its time is over: what changed until then is seen.
void carry(Stream& stream, Link& link, char* target, const char* source, size_t bytes) {
  double latency_s = 0;
  {
    Lock lock(machine().mutex);
    if (take_fault(COPY)) throw DeviceError("emulated device: a copy failed on the link");
    latency_s = link.latency_s;
    stream.now_s += latency_s;
  }
  if (latency_s > 0) sleep_until(wall_s() + latency_s);
  for (size_t done = 0; done < bytes;) {
    const Piece piece = admit(stream, link, std::min(bytes - done, PIECE_BYTES));
    if (link.bytes_per_s > 0) sleep_until(piece.due_s);
    std::memcpy(target + done, source + done, piece.bytes);
    done += piece.bytes;
  }
}

}  // namespace

Machine& machine() {
  // Never destroyed: the streams' threads use it until the process ends.
  static Machine* one = new Machine;
  return *one;
}

void raise_error() {
  const Machine& m = machine();
  if (!m.error.empty()) throw DeviceError(m.error);
}

bool take_fault(Fault fault) {
  int64_t& count = machine().faults[fault];
  if (count == 0) return false;
  --count;
  return true;
}

void push(StreamId id, Job job) {
  Machine& m = machine();
  Stream& stream = m.streams[id];
  if (!stream.is_started) {
    stream.is_started = true;
    std::thread([&stream] { run(stream); }).detach();
  }
  ++stream.submitted;
  stream.jobs.push_back(std::move(job));
  m.changed.notify_all();
}

std::shared_ptr<Marker> mark(StreamId id) {
  auto marker = std::make_shared<Marker>();
  push(id, {[marker, id] {
              Machine& m = machine();
              Lock lock(m.mutex);
              marker->device_s = m.streams[id].now_s;
              marker->has_passed = true;
              m.changed.notify_all();
            },
            true});
  return marker;
}

StreamId current_stream() { return the_current_stream; }

StreamId exchange_stream(StreamId stream) { return std::exchange(the_current_stream, stream); }

StreamId new_stream(int priority) {
  Machine& m = machine();
  Lock lock(m.mutex);
  const StreamId id = m.next_stream;
  // As CUDA does it: from a pool, in turn.
  m.next_stream = id % (STREAM_COUNT - 1) + 1;
  m.streams[id].priority = priority;
  return id;
}

void submit(StreamId stream, std::function<void()> kernel) {
  Machine& m = machine();
  Lock lock(m.mutex);
  raise_error();
  ++m.kernels;
  push(stream, {std::move(kernel)});
}

void transfer(StreamId id, Direction direction, void* target, const void* source, const void* host,
              size_t bytes, bool non_blocking) {
  if (bytes == 0) return;
  const bool registered = is_registered(host, bytes);
  Machine& m = machine();
  Lock lock(m.mutex);
  raise_error();
  Link& link = m.links[direction];
  ++link.copies;
  (registered ? link.bytes_registered : link.bytes_unregistered) += static_cast<int64_t>(bytes);
  Stream& stream = m.streams[id];
  push(id, {[&stream, &link, target, source, bytes] {
    carry(stream, link, static_cast<char*>(target), static_cast<const char*>(source), bytes);
  }});
  if (non_blocking && registered) return;
  count_wait();
  wait_for(lock, id);
  raise_error();
}

bool is_through(StreamId id) {
  Machine& m = machine();
  Lock lock(m.mutex);
  raise_error();
  return m.streams[id].finished == m.streams[id].submitted;
}

void synchronize(StreamId id) {
  Lock lock(machine().mutex);
  count_wait();
  wait_for(lock, id);
  raise_error();
}

void synchronize_all() {
  Lock lock(machine().mutex);
  count_wait();
  for (StreamId id = 0; id < STREAM_COUNT; ++id) wait_for(lock, id);
  raise_error();
}

struct Event {
  std::shared_ptr<Marker> marker;
};

void record(Event** event, StreamId stream) {
  Lock lock(machine().mutex);
  raise_error();
  if (*event == nullptr) *event = new Event;
  (*event)->marker = mark(stream);
}

void block(Event* event, StreamId id) {
  Machine& m = machine();
  Lock lock(m.mutex);
  raise_error();
  push(id, {[marker = event->marker, id] {
              Machine& m = machine();
              Lock lock(m.mutex);
              m.changed.wait(lock, [&] { return marker->has_passed; });
              Stream& stream = m.streams[id];
              stream.now_s = std::max(stream.now_s, marker->device_s);
            },
            true});
}

bool has_passed(Event* event) {
  Lock lock(machine().mutex);
  raise_error();
  return event->marker->has_passed;
}

void synchronize(Event* event) {
  Machine& m = machine();
  Lock lock(m.mutex);
  count_wait();
  const auto marker = event->marker;
  m.changed.wait(lock, [&] { return marker->has_passed; });
  if (take_fault(WAIT)) throw DeviceError("emulated device: a wait for an event failed");
  raise_error();
}

void destroy(Event* event) { delete event; }

double milliseconds_between(Event* earlier, Event* later) {
  Lock lock(machine().mutex);
  return (later->marker->device_s - earlier->marker->device_s) * 1e3;
}

bool is_attached() {
  Lock lock(machine().mutex);
  return machine().is_attached;
}

// --------------------------------------------------------------------- what tests set and ask

namespace {

struct Gate {
  bool is_open = false;
};

void open_link(Link& link) {
  link.passing = -1;
  machine().changed.notify_all();
}

}  // namespace

extern "C" {

struct Counters {
  int64_t registrations;
  int64_t pinned_bytes;
  int64_t device_bytes;
  int64_t kernels;
  int64_t copies[2];
  int64_t bytes_registered[2];
  int64_t bytes_unregistered[2];
  double busy_s[2];
};

void emulated_attach(int on) {
  Lock lock(machine().mutex);
  machine().is_attached = on != 0;
}

void emulated_set_link(double bytes_per_s, double latency_s) {
  Lock lock(machine().mutex);
  for (Link& link : machine().links) {
    link.bytes_per_s = bytes_per_s;
    link.latency_s = latency_s;
  }
}

void emulated_hold_link(int direction, int64_t after_bytes) {
  Lock lock(machine().mutex);
  machine().links[direction].passing = after_bytes;
}

void emulated_open_link(int direction) {
  Lock lock(machine().mutex);
  open_link(machine().links[direction]);
}

// Whether within this time a copy stood at the closed gate.
int emulated_wait_held(int direction, double seconds) {
  Machine& m = machine();
  Lock lock(m.mutex);
  return m.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return m.links[direction].waiting > 0; });
}

void* emulated_hold_stream(int64_t stream) {
  Lock lock(machine().mutex);
  auto* gate = new Gate;
  push(stream, {[gate] {
                  Machine& m = machine();
                  Lock lock(m.mutex);
                  m.changed.wait(lock, [&] { return gate->is_open; });
                  delete gate;
                },
                true});
  return gate;
}

void emulated_open_stream(void* gate) {
  Lock lock(machine().mutex);
  static_cast<Gate*>(gate)->is_open = true;
  machine().changed.notify_all();
}

void emulated_fail(int fault, int64_t count) {
  Machine& m = machine();
  Lock lock(m.mutex);
  if (fault == DEVICE) {
    m.error = "emulated device: the device is lost";
    m.changed.notify_all();
  } else {
    m.faults[fault] = count;
  }
}

// All that was set is as at the start, and nothing is under way. Held streams must be open.
void emulated_reset() {
  Machine& m = machine();
  Lock lock(m.mutex);
  for (Link& link : m.links) open_link(link);
  for (StreamId id = 0; id < STREAM_COUNT; ++id) wait_for(lock, id);
  m.links = {};
  m.error.clear();
  m.faults = {};
  m.waits.clear();
  m.kernels = 0;
  for (Stream& stream : m.streams) stream.now_s = 0;
}

int emulated_priority(int64_t stream) {
  Lock lock(machine().mutex);
  return machine().streams[stream].priority;
}

int64_t emulated_waits(uint64_t thread) {
  Lock lock(machine().mutex);
  return machine().waits[thread];
}

void emulated_counters(Counters* counters) {
  const MemoryCounts memory = memory_counts();
  Machine& m = machine();
  Lock lock(m.mutex);
  counters->registrations = memory.registrations;
  counters->pinned_bytes = memory.pinned_bytes;
  counters->device_bytes = memory.device_bytes;
  counters->kernels = m.kernels;
  for (int way : {TO_HOST, TO_DEVICE}) {
    counters->copies[way] = m.links[way].copies;
    counters->bytes_registered[way] = m.links[way].bytes_registered;
    counters->bytes_unregistered[way] = m.links[way].bytes_unregistered;
    counters->busy_s[way] = m.links[way].busy_s;
  }
}

int emulated_host_register(void* host, size_t bytes) { return register_host(host, bytes); }

int emulated_host_unregister(void* host) { return unregister_host(host); }

void emulated_peek(const void* front, void* target, size_t bytes) {
  std::memcpy(target, back_of(front), bytes);
}

}  // extern "C"

}  // namespace emulated
