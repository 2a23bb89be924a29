// Implicit GEMM on tensor cores, for channels that are neighbours in memory.
//
// Computes the product of gather.cuh, C[row, lane] = sum of A[row, depth] * B[lane, depth], in
// tiles of BM rows and BN lanes; a warp has WM x WN of them. STAGES buffers hold 64 bytes of depth
// each: while a block multiplies one, asynchronous copies fill the others.
//
//   tensor_fwd<T, BM, BN, WM, WN, STAGES>(x, w, bias, y, parts, splits, p)
//   tensor_dx <T, BM, BN, WM, WN, STAGES>(dy, w, bias, dx, parts, splits, p)
//   tensor_dw <T, BM, BN, WM, WN, STAGES>(x, dy, parts, splits, p)
//
// compute what the kernels of igemm.cuh compute that are called so.
//
// Launch: a warp for each WM x WN of a tile; lane tiles * row tiles * groups * splits blocks on the
// x axis. Dynamic shared memory: STAGES (BM + BN) 64 bytes, or 64 (BN + 8) sums for the way out.
//
// Types: half_t and bfloat16_t, summed in float; double; float, rounded to TF32 (10 bits of
// mantissa) and summed in float. Products are exact; how the unit rounds its sums is documented for
// double (to nearest) but not for float.
//
// Preconditions, with E = 16 / sizeof(T): in the operands read, channels have stride 1, every other
// stride is a multiple of E, and arrays begin at multiples of 16 bytes; c is a multiple of E, and o
// too but for tensor_fwd. So E neighbouring channels, a chunk, are copied at once. Taps are ordered
// (r, c). Zeros of the padding, and sums of dx that are not finite, are as in igemm.cuh.
//
// A tile lies in memory as it was copied, in chunks. In a straight tile a line is a row (lane), and
// its four chunks are depth; in a crossed tile a line is depth, and its chunks are rows (lanes). A
// is crossed in tensor_dw, B in tensor_dx and tensor_dw. Chunks change places within a line, so
// that those which a warp loads together lie in different banks.
//
// Sources: PTX ISA, "Matrix multiply-accumulate operation using mma instruction" (fragments);
// A. Kerr et al., "CUTLASS: fast linear algebra in CUDA C++", 2017 (tiles of blocks and warps).

// STEPS: mma along 64 bytes of depth. BLOCKS: that a processor should hold; with more of them, and
// fewer registers for each, sums would spill.
template <class T> struct Tensor {
  typedef unsigned Register;
  enum { STEPS = 2, BLOCKS = sizeof(T) == 2 ? 2 : 1 };
};
template <> struct Tensor<double> {
  typedef double Register;
  enum { STEPS = 1, BLOCKS = 1 };
};

// Elements of a chunk.
template <class T> struct Chunk {
  enum { SIZE = 16 / (int)sizeof(T) };
};

template <class T> static __device__ __forceinline__ int straight(int line, int chunk) {
  return (line * 4 + (chunk ^ (line >> 1 & 3))) * Chunk<T>::SIZE;
}
// TILE: elements of a line
template <class T, int TILE> static __device__ __forceinline__ int crossed(int line, int element) {
  constexpr int SIZE = Chunk<T>::SIZE;
  return line * TILE + (element / SIZE ^ (line & 7)) * SIZE + element % SIZE;
}

// The fragment of A of rows [row, row + 16) at a step of depth.
template <bool CROSSED, int TILE, class T>
static __device__ __forceinline__ void load_a(unsigned (&a)[4], const T *tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  if (CROSSED) {
    const int line = step * 16 + lane % 8 + lane / 16 * 8;
    load_transposed(a, tile + crossed<T, TILE>(line, row + lane / 8 % 2 * 8));
  } else {
    load_matrices(a, tile + straight<T>(row + lane % 16, step * 2 + lane / 16));
  }
}
template <bool CROSSED, int TILE>
static __device__ __forceinline__ void load_a(unsigned (&a)[4], const float *tile, int row,
                                              int step) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (CROSSED) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = crossed<float, TILE>(step * 8 + t + i / 2 * 4, row + g + i % 2 * 8);
      a[i] = __float_as_uint(tile[at]);
    }
  } else {
    load_matrices(a, tile + straight<float>(row + lane % 16, step * 2 + lane / 16));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = tf32_of(a[i]);
}
template <bool CROSSED, int TILE>
static __device__ __forceinline__ void load_a(double (&a)[4], const double *tile, int row, int) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = row + g + i * 8;
    if (CROSSED) {
      a[i] = tile[crossed<double, TILE>(2 * t, at)];
      a[i + 2] = tile[crossed<double, TILE>(2 * t + 1, at)];
    } else {
      const Vec<double, 2> two =
          *reinterpret_cast<const Vec<double, 2> *>(tile + straight<double>(at, t));
      a[i] = two.of[0];
      a[i + 2] = two.of[1];
    }
  }
}

// Two fragments of B, of lanes [first, first + 8) and the 8 after them.
template <bool CROSSED, int TILE, class T>
static __device__ __forceinline__ void load_b(unsigned (&b)[4], const T *tile, int first,
                                              int step) {
  const int lane = threadIdx.x % 32;
  if (CROSSED) {
    const int line = step * 16 + lane % 16;
    load_transposed(b, tile + crossed<T, TILE>(line, first + lane / 16 * 8));
  } else {
    const int line = first + lane % 8 + lane / 16 * 8;
    load_matrices(b, tile + straight<T>(line, step * 2 + lane / 8 % 2));
  }
}
template <bool CROSSED, int TILE>
static __device__ __forceinline__ void load_b(unsigned (&b)[4], const float *tile, int first,
                                              int step) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (CROSSED) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = crossed<float, TILE>(step * 8 + t + i % 2 * 4, first + g + i / 2 * 8);
      b[i] = __float_as_uint(tile[at]);
    }
  } else {
    const int line = first + lane % 8 + lane / 16 * 8;
    load_matrices(b, tile + straight<float>(line, step * 2 + lane / 8 % 2));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) b[i] = tf32_of(b[i]);
}
template <bool CROSSED, int TILE>
static __device__ __forceinline__ void load_b(double (&b)[4], const double *tile, int first, int) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int at = first + g + i * 8;
    if (CROSSED) {
      b[2 * i] = tile[crossed<double, TILE>(2 * t, at)];
      b[2 * i + 1] = tile[crossed<double, TILE>(2 * t + 1, at)];
    } else {
      const Vec<double, 2> two =
          *reinterpret_cast<const Vec<double, 2> *>(tile + straight<double>(at, t));
      b[2 * i] = two.of[0];
      b[2 * i + 1] = two.of[1];
    }
  }
}

template <class T, int BM, int BN, int STAGES> struct __align__(128) Stages {
  T a[STAGES][BM * 64 / sizeof(T)];
  T b[STAGES][BN * 64 / sizeof(T)];
};

// Sum a tile: sums[i][j][e] is at the row and lane that `tensor_row` and `tensor_lane` say.
template <int OP, class T, class A, int BM, int BN, int WM, int WN, int STAGES>
static __device__ __forceinline__ void multiply(A (&sums)[WM / 16][WN / 8][4],
                                                Stages<T, BM, BN, STAGES> &shared,
                                                const Operands<T> &operands, const Part &part,
                                                const ConvP &p) {
  typedef typename Tensor<T>::Register Register;
  constexpr bool A_CROSSED = OP == WEIGHT, B_CROSSED = OP != FORWARD;
  constexpr int THREADS = BM / WM * (BN / WN) * 32, SIZE = Chunk<T>::SIZE, BK = 4 * SIZE;
  constexpr int CHUNKS_A = A_CROSSED ? BM / SIZE : 4, CHUNKS_B = B_CROSSED ? BN / SIZE : 4;
  constexpr int LINES_A = THREADS / CHUNKS_A, LINES_B = THREADS / CHUNKS_B;
  constexpr int LOADS_A = BM * 4 / THREADS, LOADS_B = BN * 4 / THREADS;
  static_assert(BM * 4 % THREADS == 0 && BN * 4 % THREADS == 0, "tile");
  static_assert(THREADS % CHUNKS_A == 0 && THREADS % CHUNKS_B == 0, "tile");
  static_assert(WM % 16 == 0 && WN % 16 == 0 && BM / SIZE >= 8 && BN / SIZE >= 8, "tile");
  constexpr int ROWS = A_CROSSED ? 1 : LOADS_A;
  const int tid = threadIdx.x;
  // A thread copies the same chunk of several lines.
  const int a_chunk = tid % CHUNKS_A, b_chunk = tid % CHUNKS_B;
  auto a_line = [=](int i) { return tid / CHUNKS_A + i * LINES_A; };
  auto b_line = [=](int i) { return tid / CHUNKS_B + i * LINES_B; };

  Index rows[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    rows[i] = row_index<OP, true>(part.row + (A_CROSSED ? a_chunk * SIZE : a_line(i)), p);
  }
  auto load = [&](int stage, int k) {
#pragma unroll
    for (int i = 0; i < LOADS_A; i++) {
      const int line = a_line(i);
      const Index &row = rows[i % ROWS];
      const Index depth = depth_index<OP, true>(k + (A_CROSSED ? line : a_chunk * SIZE), p);
      const bool exists = meet<OP>(row, depth, p);
      const int to =
          A_CROSSED ? crossed<T, BM>(line, a_chunk * SIZE) : straight<T>(line, a_chunk);
      const T *from = operands.source + (exists ? row.source + depth.source : 0);
      copy_async(&shared.a[stage][to], from, exists);
    }
#pragma unroll
    for (int i = 0; i < LOADS_B; i++) {
      const int line = b_line(i);
      const int lane = part.lane + (B_CROSSED ? b_chunk * SIZE : line);
      const int at = k + (B_CROSSED ? line : b_chunk * SIZE);
      const Index depth = depth_index<OP, true>(at, p);
      const bool exists = lane < part.lanes && at < part.depth_end;
      const int to =
          B_CROSSED ? crossed<T, BN>(line, b_chunk * SIZE) : straight<T>(line, b_chunk);
      const T *from = operands.b + (exists ? lane * operands.b_lane + depth.pair : 0);
      copy_async(&shared.b[stage][to], from, exists);
    }
  };

#pragma unroll
  for (int i = 0; i < WM / 16; i++) {
#pragma unroll
    for (int j = 0; j < WN / 8; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) sums[i][j][e] = A(0);
    }
  }
  const int warp_row = tid / 32 % (BM / WM) * WM, warp_lane = tid / 32 / (BM / WM) * WN;
  // A group of copies a step, empty or not, so that counting groups is counting steps.
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (part.depth_end - part.depth > s * BK) load(s, part.depth + s * BK);
    close_copies();
  }
  for (int k = part.depth, stage = 0; k < part.depth_end; k += BK, stage = (stage + 1) % STAGES) {
    wait_for_copies<STAGES - 2>();
    // Now the copies of all threads have landed, and nobody reads the stage before this one.
    __syncthreads();
    const int ahead = (STAGES - 1) * BK;
    if (part.depth_end - k > ahead) load((stage + STAGES - 1) % STAGES, k + ahead);
    close_copies();
    const T *tile_a = shared.a[stage], *tile_b = shared.b[stage];
#pragma unroll
    for (int step = 0; step < Tensor<T>::STEPS; step++) {
      Register a[WM / 16][4], b[WN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; i++) {
        load_a<A_CROSSED, BM>(a[i], tile_a, warp_row + i * 16, step);
      }
#pragma unroll
      for (int j = 0; j < WN / 16; j++) {
        load_b<B_CROSSED, BN>(b[j], tile_b, warp_lane + j * 16, step);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) mma(T(), sums[i][j], a[i], b[j / 2] + j % 2 * 2);
      }
    }
  }
  wait_for_copies<0>();
}

template <int BM, int WM> static __device__ __forceinline__ int tensor_row(int i, int e) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return warp % (BM / WM) * WM + i * 16 + lane / 4 + e / 2 * 8;
}
template <int BM, int WM, int WN> static __device__ __forceinline__ int tensor_lane(int j, int e) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return warp / (BM / WM) * WN + j * 8 + lane % 4 * 2 + e % 2;
}

template <int OP, class T, int BM, int BN, int WM, int WN, int STAGES>
static __device__ __forceinline__ void tensor_pixels(const T *source, const T *w, const T *bias,
                                                     T *out, typename Sum<T>::type *parts,
                                                     int splits, const ConvP &p) {
  typedef typename Sum<T>::type A;
  union Shared {
    Stages<T, BM, BN, STAGES> stages;
    Staged<A, BN, BN + 8, 1> staged;
  };
  CYCONV_DYNAMIC(Shared, shared);
  constexpr int WARPS = BM / WM, ROWS = 64 / WARPS;
  static_assert(WM % ROWS == 0, "tile");
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Part part = part_of<OP, BM, BN, 64 / (int)sizeof(T)>(splits, p);
  A sums[WM / 16][WN / 8][4];
  multiply<OP, T, A, BM, BN, WM, WN, STAGES>(
      sums, shared.stages, operands_of<OP>(source, w, part.group, p), part, p);
  // Each time, ROWS rows of every warp.
#pragma unroll
  for (int first = 0; first < WM; first += ROWS) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
      for (int j = 0; j < WN / 8; j++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int row = warp % WARPS * ROWS + i * 16 + lane / 4 + e / 2 * 8;
          const int at = shared.staged.at(row, tensor_lane<BM, WM, WN>(j, 0));
          const A(&of)[4] = sums[first / 16 + i][j];
          *reinterpret_cast<Vec<A, 2> *>(&shared.staged.sums[at]) = Vec<A, 2>{{of[e], of[e + 1]}};
        }
      }
    }
    __syncthreads();
    auto row_at = [=](int r) { return r / ROWS * WM + first + r % ROWS; };
    put<OP, true, BM / WM * (BN / WN) * 32>(shared.staged, row_at, source, w, bias, out, parts,
                                            splits, part, p);
  }
}

template <class T, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, Tensor<T>::BLOCKS)
tensor_fwd(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,
           T *__restrict__ y, typename Sum<T>::type *__restrict__ parts, int splits,
           const __grid_constant__ ConvP p) {
  tensor_pixels<FORWARD, T, BM, BN, WM, WN, STAGES>(x, w, bias, y, parts, splits, p);
}

template <class T, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, 1)
tensor_dx(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ bias,
          T *__restrict__ dx, typename Sum<T>::type *__restrict__ parts, int splits,
          const __grid_constant__ ConvP p) {
  tensor_pixels<DATA, T, BM, BN, WM, WN, STAGES>(dy, w, bias, dx, parts, splits, p);
}

template <class T, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, Tensor<T>::BLOCKS)
tensor_dw(const T *__restrict__ x, const T *__restrict__ dy,
          typename Sum<T>::type *__restrict__ parts, int splits, const __grid_constant__ ConvP p) {
  typedef Stages<T, BM, BN, STAGES> Shared;
  CYCONV_DYNAMIC(Shared, shared);
  const Part part = part_of<WEIGHT, BM, BN, 64 / (int)sizeof(T)>(splits, p);
  typename Sum<T>::type sums[WM / 16][WN / 8][4];
  multiply<WEIGHT, T, typename Sum<T>::type, BM, BN, WM, WN, STAGES>(
      sums, shared, operands_of<WEIGHT>(x, dy, part.group, p), part, p);
#pragma unroll
  for (int i = 0; i < WM / 16; i++) {
#pragma unroll
    for (int j = 0; j < WN / 8; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int row = part.row + tensor_row<BM, WM>(i, e);
        const int lane = part.lane + tensor_lane<BM, WM, WN>(j, e);
        if (row < part.rows && lane < part.lanes) parts[place(row, lane, part, p)] = sums[i][j][e];
      }
    }
  }
}
