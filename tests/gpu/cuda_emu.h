// Runs CUDA C++ kernels on the processor, for tests: force-included before a kernel source.
//
// The blocks of a grid run one after the other. Every thread of a block is a fiber that runs until
// it reaches a barrier of its block or warp; a scheduler decides who runs next, by one of several
// schedules. What a GPU leaves to chance is thus repeatable, and a kernel whose result depends on
// the schedule has a race. Shared memory starts as NaN and ends at an inaccessible page; barriers
// that not all threads reach, and wild accesses, end the launch with a message.
#pragma once
#define CYCONV_EMULATED 1
#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <type_traits>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define CYCONV_SHARED(Type, name) Type &name = *(Type *)emu::static_shared(sizeof(Type))
#define CYCONV_DYNAMIC(Type, name) Type &name = *(Type *)emu::dynamic_shared(sizeof(Type))

struct uint3 {
  unsigned x, y, z;
};
typedef uint3 dim3;
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };

namespace emu {

enum State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
struct Fiber {
  jmp_buf resume;
  ucontext_t start;
  uint3 tid;
  unsigned lin;  // number within the block
  State state;
  int line;      // of the barrier it waits at
  bool started;
};

const unsigned MOST_THREADS = 1024, LANES = 32;
const size_t STACK = 64 * 1024, ARENA = 280 * 1024, PAGE = 4096;
const size_t MOST_STATIC = 48 * 1024, MOST_DYNAMIC = 227 * 1024;
const int REFUSED = 1000;  // instead of a signal's number

inline Fiber fibers[MOST_THREADS];
inline Fiber *cur;
inline unsigned n_threads;
inline uint3 block_idx;
inline dim3 block_dim, grid_dim;
inline jmp_buf scheduler;
inline sigjmp_buf fatal;
inline void *fault_address;
inline void (*body)(void *);
inline void *body_argument;
inline char message[512];

inline unsigned lane() { return cur->lin % LANES; }
inline unsigned warp() { return cur->lin / LANES; }

// --- barriers ---------------------------------------------------------------------------------

inline void wait_as(State state, int line) {
  cur->state = state;
  cur->line = line;
  if (!_setjmp(cur->resume)) _longjmp(scheduler, 1);
}
inline void sync_block(int line) { wait_as(AT_BLOCK_BARRIER, line); }
inline void sync_warp(int line) { wait_as(AT_WARP_BARRIER, line); }

// What the lanes of a warp show each other; a barrier lies between writing and reading.
inline unsigned char warpbuf[MOST_THREADS / LANES][LANES][64];

template <class T> inline T exchange(T value, unsigned from) {
  static_assert(sizeof(T) <= 64, "");
  memcpy(warpbuf[warp()][lane()], &value, sizeof value);
  sync_warp(-1);
  T got;
  memcpy(&got, warpbuf[warp()][from % LANES], sizeof got);
  sync_warp(-2);
  return got;
}

// --- shared memory: an arena that ends at a guard page, dynamic objects last ----------------------

inline unsigned char *arena;
inline size_t dynamic_nbytes, used_nbytes;

[[noreturn]] inline void refuse(const char *what, size_t n, size_t most) {
  snprintf(message, sizeof message, "%s shared memory: %zu bytes, %zu at most", what, n, most);
  siglongjmp(fatal, REFUSED);
}
inline void *dynamic_shared(size_t n) {
  if (n > dynamic_nbytes) refuse("dynamic", n, dynamic_nbytes);
  return arena + ARENA - dynamic_nbytes;
}
inline void *static_shared(size_t n) {  // one object a kernel
  n = (n + 15) / 16 * 16;
  if (n > MOST_STATIC) refuse("static", n, MOST_STATIC);
  if (n + dynamic_nbytes > used_nbytes) used_nbytes = n + dynamic_nbytes;
  return arena + ARENA - dynamic_nbytes - n;
}

// --- asynchronous copies: a copy lands only when its group is waited for ----------------------

struct Copy {
  void *to;
  const void *from;  // null: zeros
  unsigned n;
};
inline std::deque<std::vector<Copy>> groups[MOST_THREADS];
inline std::vector<Copy> open_group[MOST_THREADS];

inline void cp_async(void *to, const void *from, unsigned n, bool copied) {
  if ((uintptr_t)to % n || (copied && (uintptr_t)from % n)) __builtin_trap();
  open_group[cur->lin].push_back({to, copied ? from : nullptr, n});
}
inline void cp_commit() {
  groups[cur->lin].push_back(open_group[cur->lin]);
  open_group[cur->lin].clear();
}
inline void cp_wait(unsigned left) {
  auto &waiting = groups[cur->lin];
  for (; waiting.size() > left; waiting.pop_front())
    for (auto &copy : waiting.front()) {
      if (copy.from) memcpy(copy.to, copy.from, copy.n);
      else memset(copy.to, 0, copy.n);
    }
}

// Four 8x8 matrices of 16 bits: lane l gives the address of row l % 8 of matrix l / 8.
inline void ldmatrix_x4(unsigned (&r)[4], const void *row) {
  if ((uintptr_t)row % 16) __builtin_trap();
  memcpy(warpbuf[warp()][lane()], row, 16);
  sync_warp(-5);
  for (int m = 0; m < 4; m++)
    memcpy(&r[m], warpbuf[warp()][m * 8 + lane() / 4] + lane() % 4 * 4, 4);
  sync_warp(-6);
}

// --- the scheduler ----------------------------------------------------------------------------

inline unsigned random_below(unsigned &state, unsigned n) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % n;
}

inline void entry() {
  for (;;) {  // a fiber serves block after block
    body(body_argument);
    cur->state = DONE;
    if (!_setjmp(cur->resume)) _longjmp(scheduler, 1);
  }
}

// Run those lanes of a warp that can run, in this order, each to its next barrier.
inline void run_lanes(unsigned first, unsigned n, const unsigned *order) {
  for (unsigned k = 0; k < LANES; k++) {
    if (order[k] >= n || fibers[first + order[k]].state != READY) continue;
    cur = fibers + first + order[k];
    if (!_setjmp(scheduler)) {
      if (cur->started) _longjmp(cur->resume, 1);
      cur->started = true;
      setcontext(&cur->start);
    }
  }
}

// Let a warp go on if all its lanes wait at the same barrier of the warp.
inline bool release_warp(unsigned first, unsigned n) {
  for (unsigned i = first; i < first + n; i++)
    if (fibers[i].state != AT_WARP_BARRIER || fibers[i].line != fibers[first].line) return false;
  for (unsigned i = first; i < first + n; i++) fibers[i].state = READY;
  return true;
}

// Let the block go on if all its threads wait at the same __syncthreads; true when all are done.
inline bool release_block(bool &diverged) {
  unsigned done = 0, waiting = 0;
  bool mixed = false;
  int line = 0;
  for (unsigned i = 0; i < n_threads; i++) {
    if (fibers[i].state == DONE) done++;
    if (fibers[i].state != AT_BLOCK_BARRIER) continue;
    if (waiting++ && fibers[i].line != line) mixed = true;
    line = fibers[i].line;
  }
  if (done == n_threads) return true;
  diverged = waiting != n_threads || mixed;
  if (diverged)
    snprintf(message, sizeof message,
             "barrier divergence in block %u: %u of %u threads at __syncthreads (line %d%s), "
             "%u have ended, the rest wait at a barrier of their warp",
             block_idx.x, waiting, n_threads, line, mixed ? " and others" : "", done);
  for (unsigned i = 0; i < n_threads; i++) fibers[i].state = READY;
  return false;
}

// Seed 0 runs each warp as far as its next __syncthreads before the next moves, lowest first; seed
// 1 highest first, lanes reversed; any other seed picks a random warp and lanes at each step.
inline bool run_block(unsigned seed) {
  const bool random = seed > 1;
  const unsigned n_warps = (n_threads + LANES - 1) / LANES;
  unsigned order[LANES];
  for (unsigned i = 0; i < LANES; i++) order[i] = seed == 1 ? LANES - 1 - i : i;
  for (unsigned i = 0; i < n_threads; i++) {
    fibers[i].state = READY;
    groups[i].clear();
    open_group[i].clear();
  }
  memset(arena + ARENA - used_nbytes, 0xFF, used_nbytes);  // NaN, for every block anew
  for (;;) {
    bool blocked[MOST_THREADS / LANES] = {};
    for (unsigned left = n_warps; left;) {
      unsigned w = seed == 1 ? left - 1 : n_warps - left;
      if (random) {
        for (unsigned i = LANES - 1; i > 0; i--) std::swap(order[i], order[random_below(seed, i + 1)]);
        unsigned skip = random_below(seed, left);
        for (w = 0; blocked[w] || skip--; w++) {}
      }
      const unsigned first = w * LANES, n = n_threads - first < LANES ? n_threads - first : LANES;
      bool goes_on;
      do {
        run_lanes(first, n, order);
        goes_on = release_warp(first, n);
      } while (goes_on && !random);
      if (!goes_on) {
        blocked[w] = true;
        left--;
      }
    }
    bool diverged = false;
    if (release_block(diverged)) return true;
    if (diverged) return false;
  }
}

// --- launching --------------------------------------------------------------------------------

inline void on_signal(int signal, siginfo_t *info, void *) {
  fault_address = info->si_addr;
  siglongjmp(fatal, signal);
}

inline void *map(size_t nbytes) {
  return mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
              -1, 0);
}

inline void prepare() {
  if (arena) return;
  arena = (unsigned char *)map(ARENA + PAGE);
  mprotect(arena + ARENA, PAGE, PROT_NONE);
  unsigned char *stacks = (unsigned char *)map(STACK * MOST_THREADS);
  for (unsigned i = 0; i < MOST_THREADS; i++) {
    fibers[i].lin = i;
    fibers[i].start.uc_stack.ss_sp = stacks + STACK * i;
    fibers[i].start.uc_stack.ss_size = STACK;
  }
}

inline void prepare_fibers() {
  for (unsigned i = 0; i < n_threads; i++) {
    Fiber &f = fibers[i];
    f.tid = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    if (f.started) continue;
    const stack_t stack = f.start.uc_stack;
    getcontext(&f.start);
    f.start.uc_stack = stack;
    f.start.uc_link = nullptr;
    makecontext(&f.start, entry, 0);
  }
}

inline bool valid(const unsigned *grid, const unsigned *block, size_t dynamic) {
  const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  return threads && threads <= MOST_THREADS && block[2] <= 64 && grid[0] && grid[1] && grid[2] &&
         grid[0] <= 0x7fffffffu && grid[1] <= 65535 && grid[2] <= 65535 && dynamic <= MOST_DYNAMIC;
}

inline bool run_grid(unsigned seed) {
  memset(arena, 0xFF, ARENA);
  used_nbytes = dynamic_nbytes;  // the first block adds its static object
  for (unsigned z = 0; z < grid_dim.z; z++)
    for (unsigned y = 0; y < grid_dim.y; y++)
      for (unsigned x = 0; x < grid_dim.x; x++) {
        block_idx = {x, y, z};
        if (!run_block(seed)) return false;
      }
  return true;
}

// Returns 0, or 1 with a message.
inline int launch(void (*fn)(void *), void *argument, const unsigned *grid, const unsigned *block,
                  size_t dynamic, unsigned seed) {
  message[0] = 0;
  if (!valid(grid, block, dynamic)) {
    snprintf(message, sizeof message, "invalid launch: grid (%u, %u, %u), block (%u, %u, %u)",
             grid[0], grid[1], grid[2], block[0], block[1], block[2]);
    return 1;
  }
  grid_dim = {grid[0], grid[1], grid[2]};
  block_dim = {block[0], block[1], block[2]};
  n_threads = block[0] * block[1] * block[2];
  dynamic_nbytes = dynamic;
  body = fn;
  body_argument = argument;
  prepare();
  prepare_fibers();

  static unsigned char signal_stack[64 * 1024];
  stack_t mine = {}, theirs;
  mine.ss_sp = signal_stack;
  mine.ss_size = sizeof signal_stack;
  sigaltstack(&mine, &theirs);
  const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  struct sigaction handler = {}, before[4];
  handler.sa_sigaction = on_signal;
  handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &handler, &before[i]);

  bool fine = false;
  const int signal = sigsetjmp(fatal, 1);
  if (signal == 0) {
    fine = run_grid(seed);
  } else if (signal != REFUSED) {
    snprintf(message, sizeof message, "%s in block %u, thread %u, address %p",
             signal == SIGILL ? "undefined behaviour (bounds, alignment, overflow, shift, division)"
                              : "illegal memory access",
             block_idx.x, cur->lin, fault_address);
  }
  if (!fine)  // some fibers are in the middle of a kernel
    for (Fiber &f : fibers) f.started = false;
  for (int i = 0; i < 4; i++) sigaction(signals[i], &before[i], nullptr);
  sigaltstack(&theirs, nullptr);
  return fine ? 0 : 1;
}

// kernel(arguments...) from an array of pointers to arguments, as cuLaunchKernel takes them
template <class... A> struct Call {
  void (*kernel)(A...);
  void **arguments;
  template <size_t... I> void go(std::index_sequence<I...>) {
    kernel(*(std::remove_cv_t<A> *)arguments[I]...);
  }
  static void run(void *self) { ((Call *)self)->go(std::index_sequence_for<A...>()); }
};
template <class... A>
int call(void (*kernel)(A...), void **arguments, const unsigned *grid, const unsigned *block,
         size_t dynamic, unsigned seed) {
  Call<A...> bound{kernel, arguments};
  return launch(&Call<A...>::run, &bound, grid, block, dynamic, seed);
}

// The size and kind of each parameter: a pointer to what is read (r) or written (w), an integer
// (i), a floating-point number (f) or a struct (s).
template <class T> char kind_of() {
  if (std::is_pointer_v<T>) return std::is_const_v<std::remove_pointer_t<T>> ? 'r' : 'w';
  if (std::is_floating_point_v<T>) return 'f';
  return std::is_integral_v<T> ? 'i' : 's';
}
template <class... A> int signature(void (*)(A...), int *sizes, char *kinds) {
  int i = 0;
  ((sizes[i] = sizeof(A), kinds[i] = kind_of<A>(), i++), ...);
  return i;
}

}  // namespace emu

// Put after a source, for the instantiation that it is compiled for.
#define EMULATED_KERNEL(...)                                                                      \
  extern "C" int emulated_launch(const unsigned *grid, const unsigned *block, size_t dynamic,     \
                                 void **arguments, unsigned seed) {                               \
    return emu::call(__VA_ARGS__, arguments, grid, block, dynamic, seed);                         \
  }                                                                                               \
  extern "C" int emulated_signature(int *sizes, char *kinds) {                                    \
    return emu::signature(__VA_ARGS__, sizes, kinds);                                             \
  }                                                                                               \
  extern "C" const char *emulated_message() { return emu::message; }

#define threadIdx (emu::cur->tid)
#define blockIdx (emu::block_idx)
#define blockDim (emu::block_dim)
#define gridDim (emu::grid_dim)
#define __syncthreads() emu::sync_block(__LINE__)
#define __syncwarp(...) emu::sync_warp(__LINE__)

template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
  return emu::exchange(v, emu::lane() ^ mask);
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned delta) {
  const unsigned from = emu::lane() + delta;
  return emu::exchange(v, from < emu::LANES ? from : emu::lane());
}
template <class T> T __shfl_sync(unsigned, T v, int from) { return emu::exchange(v, from); }

inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
template <class To, class From> To emu_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &value, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
inline int __double2hiint(double v) { return (int)(emu_bits<uint64_t>(v) >> 32); }
template <class T> T min(T a, T b) { return a < b ? a : b; }
template <class T> T max(T a, T b) { return a > b ? a : b; }

// --- what ptx.cuh has -------------------------------------------------------------------------

inline float float_of_half_bits(unsigned short bits) { return (float)emu_bits<_Float16>(bits); }
inline unsigned short half_bits_of_float(float value) {
  return emu_bits<unsigned short>((_Float16)value);
}
