// Implicit GEMM on the ordinary units, for any strides and types.
//
// Computes the product of gather.cuh, C[row, lane] = sum of A[row, depth] * B[lane, depth], in
// tiles of BM rows and BN lanes. Two buffers in shared memory hold BK steps of depth each: while a
// block multiplies one, it loads the next into registers. Each of 16 x 16 threads keeps BM/16 x
// BN/16 sums, in float (double for double), and adds in the order of depth.
//
//   igemm_fwd<T, BM, BN, BK, LAST>(x, w, bias, y, parts, splits, p)    y = conv(x, w) + bias, activated
//   igemm_dx <T, BM, BN, BK, LAST>(dy, w, bias, dx, parts, splits, p)  dx + bias, activated; stride 1
//   igemm_dw <T, BM, BN, BK, LAST>(x, dy, parts, splits, p)            parts of dw over some pixels
//
// With more than one split, the first two leave y and dx alone and store parts, for `fold_pixels`.
//
// Launch: 256 threads, of which a processor holds two blocks of small tiles or one of large ones
// (with fewer registers they would spill); lane tiles * row tiles * groups * splits blocks on the x
// axis. Shared memory, static: 2 BK (BM + BN + 8) sums, or 68 BN for the way out.
//
// A zero of the padding takes part in a sum. In dx it stands for a pair that does not exist, so
// there a sum that is not finite is computed again from the definition.
//
// LAST says that w lies as (o, r, c) instead of (o, c, r), and which elements neighbouring threads
// load: neighbours in memory, if the other arrays are channels last (first) as well. It is right
// for any strides.
//
// Sources: S. Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014 (the product
// without its matrix); V. Volkov, J. Demmel, "Benchmarking GPUs to tune dense linear algebra", 2008
// (sums in registers); G. Tan et al., "Fast implementation of DGEMM on Fermi GPU", 2011 (two
// buffers).

template <class A, int BM, int BN, int BK> struct __align__(32) Buffers {
  A a[2][BK][BM + 4];
  A b[2][BK][BN + 4];
};

// A thread's rows (lanes) in a tile: fours of neighbours, which it loads at once.
template <int COUNT, int TILE> static __device__ __forceinline__ int element_of(int i, int thread) {
  return i / 4 * (TILE / (COUNT / 4)) + thread * 4 + i % 4;
}

template <int TILE, class A, int COUNT>
static __device__ __forceinline__ void load_elements(A (&elements)[COUNT], const A *line,
                                                     int thread) {
#pragma unroll
  for (int i = 0; i < COUNT; i += 4) {
    const int first = element_of<COUNT, TILE>(i, thread);
    const Vec<A, 4> four = *reinterpret_cast<const Vec<A, 4> *>(line + first);
#pragma unroll
    for (int j = 0; j < 4; j++) elements[i + j] = four.of[j];
  }
}

// Sum a tile: sums[i][j] is that of the i-th row of thread % 16 and the j-th lane of thread / 16.
template <int OP, bool LAST, class T, class A, int BM, int BN, int BK>
static __device__ __forceinline__ void multiply(A (&sums)[BM / 16][BN / 16],
                                                Buffers<A, BM, BN, BK> &shared,
                                                const Operands<T> &operands, const Part &part,
                                                const ConvP &p) {
  constexpr int THREADS = 256, LOADS_A = BM * BK / THREADS, LOADS_B = BN * BK / THREADS;
  static_assert(THREADS % BM == 0 && THREADS % BN == 0 && THREADS % BK == 0, "tile");
  static_assert(BM * BK % THREADS == 0 && BN * BK % THREADS == 0, "tile");
  // Whether neighbouring threads load along depth, rather than along rows (lanes).
  constexpr bool A_DEPTH = LAST != (OP == WEIGHT), B_DEPTH = OP == FORWARD || !LAST;
  constexpr int ROWS = A_DEPTH ? LOADS_A : 1;
  const int tid = threadIdx.x;
  // Where in the tile a thread's i-th load goes.
  auto a_row = [=](int i) { return A_DEPTH ? tid / BK + i * (THREADS / BK) : tid % BM; };
  auto a_depth = [=](int i) { return A_DEPTH ? tid % BK : tid / BM + i * (THREADS / BM); };
  auto b_lane = [=](int i) { return B_DEPTH ? tid / BK + i * (THREADS / BK) : tid % BN; };
  auto b_depth = [=](int i) { return B_DEPTH ? tid % BK : tid / BN + i * (THREADS / BN); };

  Index rows[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; i++) rows[i] = row_index<OP, LAST>(part.row + a_row(i), p);

  T a[LOADS_A], b[LOADS_B];
  auto load = [&](int k) {
#pragma unroll
    for (int i = 0; i < LOADS_A; i++) {
      const Index depth = depth_index<OP, LAST>(k + a_depth(i), p), &row = rows[i % ROWS];
      a[i] = meet<OP>(row, depth, p) ? operands.source[row.source + depth.source] : zero<T>();
    }
#pragma unroll
    for (int i = 0; i < LOADS_B; i++) {
      const Index depth = depth_index<OP, LAST>(k + b_depth(i), p);
      const int lane = part.lane + b_lane(i);
      const bool exists = lane < part.lanes && k + b_depth(i) < part.depth_end;
      b[i] = exists ? operands.b[lane * operands.b_lane + depth.pair] : zero<T>();
    }
  };
  auto keep = [&](int buffer) {
#pragma unroll
    for (int i = 0; i < LOADS_A; i++) shared.a[buffer][a_depth(i)][a_row(i)] = to_sum(a[i]);
#pragma unroll
    for (int i = 0; i < LOADS_B; i++) shared.b[buffer][b_depth(i)][b_lane(i)] = to_sum(b[i]);
  };

#pragma unroll
  for (int i = 0; i < BM / 16; i++) {
#pragma unroll
    for (int j = 0; j < BN / 16; j++) sums[i][j] = A(0);
  }
  if (part.depth < part.depth_end) {
    load(part.depth);
    keep(0);
  }
  __syncthreads();
  for (int k = part.depth, buffer = 0; k < part.depth_end; k += BK, buffer ^= 1) {
    const bool more = part.depth_end - k > BK;
    if (more) load(k + BK);
#pragma unroll
    for (int step = 0; step < BK; step++) {
      A row[BM / 16], lane[BN / 16];
      load_elements<BM>(row, shared.a[buffer][step], tid % 16);
      load_elements<BN>(lane, shared.b[buffer][step], tid / 16);
#pragma unroll
      for (int i = 0; i < BM / 16; i++) {
#pragma unroll
        for (int j = 0; j < BN / 16; j++) sums[i][j] += row[i] * lane[j];
      }
    }
    if (more) {
      // Nobody reads the other buffer any more: that was before the last barrier.
      keep(buffer ^ 1);
      __syncthreads();
    }
  }
}

template <int OP, class T, int BM, int BN, int BK, bool LAST>
static __device__ __forceinline__ void igemm_pixels(const T *source, const T *w, const T *bias,
                                                    T *out, typename Sum<T>::type *parts,
                                                    int splits, const ConvP &p) {
  typedef typename Sum<T>::type A;
  union Shared {
    Buffers<A, BM, BN, BK> buffers;
    Staged<A, BN, 1, 68> staged;
  };
  CYCONV_SHARED(Shared, shared);
  constexpr int ROWS = BM / 16, LANES = BN / 16;
  const int tid = threadIdx.x;
  const Part part = part_of<OP, BM, BN, BK>(splits, p);
  A sums[ROWS][LANES];
  multiply<OP, LAST>(sums, shared.buffers, operands_of<OP>(source, w, part.group, p), part, p);
#pragma unroll
  for (int first = 0; first < ROWS; first += 4) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < LANES; j++) {
      Vec<A, 4> four;
#pragma unroll
      for (int i = 0; i < 4; i++) four.of[i] = sums[first + i][j];
      const int at = shared.staged.at(tid % 16 * 4, element_of<LANES, BN>(j, tid / 16));
      *reinterpret_cast<Vec<A, 4> *>(&shared.staged.sums[at]) = four;
    }
    __syncthreads();
    auto row_at = [=](int r) { return element_of<ROWS, BM>(first, 0) + r; };
    put<OP, LAST, 256>(shared.staged, row_at, source, w, bias, out, parts, splits, part, p);
  }
}

template <class T, int BM, int BN, int BK, bool LAST>
__global__ void __launch_bounds__(256, BM == 64 ? 2 : 1)
igemm_fwd(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,
          T *__restrict__ y, typename Sum<T>::type *__restrict__ parts, int splits,
          const __grid_constant__ ConvP p) {
  igemm_pixels<FORWARD, T, BM, BN, BK, LAST>(x, w, bias, y, parts, splits, p);
}

template <class T, int BM, int BN, int BK, bool LAST>
__global__ void __launch_bounds__(256, BM == 64 ? 2 : 1)
igemm_dx(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ bias,
         T *__restrict__ dx, typename Sum<T>::type *__restrict__ parts, int splits,
         const __grid_constant__ ConvP p) {
  igemm_pixels<DATA, T, BM, BN, BK, LAST>(dy, w, bias, dx, parts, splits, p);
}

template <class T, int BM, int BN, int BK, bool LAST>
__global__ void __launch_bounds__(256, BM == 64 ? 2 : 1)
igemm_dw(const T *__restrict__ x, const T *__restrict__ dy,
         typename Sum<T>::type *__restrict__ parts, int splits, const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  typedef Buffers<A, BM, BN, BK> Shared;
  CYCONV_SHARED(Shared, shared);
  constexpr int ROWS = BM / 16, LANES = BN / 16;
  const int tid = threadIdx.x;
  const Part part = part_of<WEIGHT, BM, BN, BK>(splits, p);
  A sums[ROWS][LANES];
  multiply<WEIGHT, LAST>(sums, shared, operands_of<WEIGHT>(x, dy, part.group, p), part, p);
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int j = 0; j < LANES; j++) {
      const int row = part.row + element_of<ROWS, BM>(i, tid % 16);
      const int lane = part.lane + element_of<LANES, BN>(j, tid / 16);
      if (row < part.rows && lane < part.lanes) parts[place(row, lane, part, p)] = sums[i][j];
    }
  }
}
