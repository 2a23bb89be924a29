// The indices of an implicit GEMM, and where its sums go.
//
// For each group, an operator is the matrix product
//     C[row, lane] = sum over depth of A[row, depth] * B[lane, depth]
// of which A is never stored: it is gathered from an image, the source. An element of A belongs to
// a pixel and a tap; it is source[n, c, i], or zero where i is outside of the source:
//
//           rows             depth         lanes  source  i = pixel's part + tap's part    B   C
//   FORWARD pixels q of y    taps (c, r)   o      x       (q stride - pad) + (r dil)       w   y
//   DATA    pixels i of dx   taps (o, r)   c      dy      (i + pad) + (-r dil)             w   dx
//   WEIGHT  taps (c, r)      pixels of dy  o      x       as FORWARD                       dy  dw
//
// DATA has stride 1: other strides come as phases (gpu/phases.py). As i, the offset of an element
// in the source is a sum of two, and both a pixel and a tap have a second offset, in their pair:
// that of a pixel is y, dx or dy, that of a tap is w. Taps are counted as they lie in w: (c, r), or
// (r, c) if LAST.
//
// Preconditions: pixels and taps fit in 31 bits, coordinates of the padded source in 30. Offsets
// count elements in 64 bits.

enum Operator { FORWARD, DATA, WEIGHT };

// What a pixel or a tap adds to the coordinates and to the offset in the source; its offset in its
// pair.
struct Index {
  int at[3];
  long long source, pair;
};

// Outside of any source, whatever is added; twice this still fits an int.
static __device__ __forceinline__ Index nowhere() { return Index{{-(1 << 30), 0, 0}, 0, 0}; }

template <int OP> static __device__ __forceinline__ Index pixel_index(int m, const ConvP &p) {
  if (m >= (OP == DATA ? p.in_pixels : p.out_pixels)) return nowhere();
  const Pixel pixel = OP == DATA ? in_pixel(m, p) : out_pixel(m, p);
  const long long(&source)[5] = OP == DATA ? p.ys : p.xs;
  const long long(&pair)[5] = OP == DATA ? p.xs : p.ys;
  Index index{{0, 0, 0}, pixel.n * source[0], pixel.n * pair[0]};
#pragma unroll
  for (int a = 0; a < 3; a++) {
    const int i = pixel.i[a];
    index.at[a] = OP == DATA ? i + p.pad[a] : i * p.stride[a] - p.pad[a];
    index.source += index.at[a] * source[2 + a];
    index.pair += i * pair[2 + a];
  }
  return index;
}

template <int OP> static __device__ __forceinline__ int count_taps(const ConvP &p) {
  return p.taps * (OP == DATA ? p.co : p.ci);
}

template <int OP, bool LAST>
static __device__ __forceinline__ Index tap_index(int k, const ConvP &p) {
  if (k >= count_taps<OP>(p)) return nowhere();
  const Depth depth = depth_of<LAST>(k, OP == DATA ? p.by_co : p.by_ci, p);
  const long long(&source)[5] = OP == DATA ? p.ys : p.xs;
  Index index{{0, 0, 0}, depth.c * source[1], depth.c * p.ws[OP == DATA ? 0 : 1]};
#pragma unroll
  for (int a = 0; a < 3; a++) {
    const int r = depth.tap.r[a];
    index.at[a] = OP == DATA ? -r * p.dil[a] : r * p.dil[a];
    index.source += index.at[a] * source[2 + a];
    index.pair += r * p.ws[2 + a];
  }
  return index;
}

template <int OP, bool LAST>
static __device__ __forceinline__ Index row_index(int row, const ConvP &p) {
  return OP == WEIGHT ? tap_index<OP, LAST>(row, p) : pixel_index<OP>(row, p);
}

template <int OP, bool LAST>
static __device__ __forceinline__ Index depth_index(int k, const ConvP &p) {
  return OP == WEIGHT ? pixel_index<OP>(k, p) : tap_index<OP, LAST>(k, p);
}

// Whether the element of A that a pixel and a tap have in common lies in the source.
template <int OP>
static __device__ __forceinline__ bool meet(const Index &a, const Index &b, const ConvP &p) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < 3; i++) {
    all = all && inside(a.at[i] + b.at[i], OP == DATA ? p.out[i] : p.in[i]);
  }
  return all;
}

// The part of the product that a block computes. Blocks count tiles of lanes first, so that
// neighbours gather the same pixels, then tiles of rows, groups and splits of the depth.
struct Part {
  int row, lane, group, split;  // of the first element
  int depth, depth_end;
  int rows, lanes;              // of the whole product
};

template <int OP, int BM, int BN, int BK>
static __device__ __forceinline__ Part part_of(int splits, const ConvP &p) {
  Part part;
  part.rows = OP == FORWARD ? p.out_pixels : OP == DATA ? p.in_pixels : count_taps<OP>(p);
  part.lanes = OP == DATA ? p.ci : p.co;
  const int depth = OP == WEIGHT ? p.out_pixels : count_taps<OP>(p);
  // Plain divisions: they happen once a block.
  const int lane_tiles = (part.lanes - 1) / BN + 1, row_tiles = (part.rows - 1) / BM + 1;
  int rest = blockIdx.x;
  part.lane = rest % lane_tiles * BN;
  rest /= lane_tiles;
  part.row = rest % row_tiles * BM;
  rest /= row_tiles;
  part.group = rest % p.groups;
  part.split = rest / p.groups;
  const int each = ((depth - 1) / splits / BK + 1) * BK;
  const long long first = (long long)part.split * each;
  part.depth = first < depth ? (int)first : depth;
  part.depth_end = depth - part.depth < each ? depth : part.depth + each;
  return part;
}

// Source and B of one group, and the distance of B's lanes.
template <class T> struct Operands {
  const T *source, *b;
  long long b_lane;
};

template <int OP, class T>
static __device__ __forceinline__ Operands<T> operands_of(const T *source, const T *b, int group,
                                                          const ConvP &p) {
  const long long input = (long long)group * p.ci, output = (long long)group * p.co;
  Operands<T> of;
  of.source = source + (OP == DATA ? output * p.ys[1] : input * p.xs[1]);
  of.b = b + output * (OP == WEIGHT ? p.ys[1] : p.ws[0]);
  of.b_lane = OP == FORWARD ? p.ws[0] : OP == DATA ? p.ws[1] : p.ys[1];
  return of;
}

// 64 rows of a block's sums, on their way from the threads that have them to those that store them.
// STEP_ROW or STEP_LANE is 1, the other a little more than a power of two, against bank conflicts.
template <class A, int LANES, int STEP_ROW, int STEP_LANE> struct __align__(16) Staged {
  A sums[STEP_ROW == 1 ? LANES * STEP_LANE : 64 * STEP_ROW];
  static __device__ __forceinline__ int at(int row, int lane) {
    return row * STEP_ROW + lane * STEP_LANE;
  }
};

// Finish and store a sum of FORWARD or DATA. One of DATA that is not finite may owe that to a weight
// times the zero of a pair that does not exist, so it is computed again.
template <int OP, class T, class A>
static __device__ __forceinline__ void finish_pixel(A sum, int row, int channel, const T *source,
                                                    const T *w, const T *bias, T *out,
                                                    const ConvP &p) {
  if (OP == DATA && !is_finite(sum)) {
    const Pixel in = in_pixel(row, p);
    sum = (A)dx_by_definition(source, w, p, in.n, channel, in.i[0], in.i[1], in.i[2]);
  }
  if (bias) sum += to_sum(bias[channel]);
  const long long offset = channel * (OP == DATA ? p.xs[1] : p.ys[1]);
  store(out + (pixel_index<OP>(row, p).pair + offset), sum, p);
}

// Place of a sum among the parts: in each split they lie as [channel][row], those of WEIGHT as in
// dw, [o][taps].
static __device__ __forceinline__ long long place(int row, int lane, const Part &part,
                                                  const ConvP &p) {
  const long long first = (long long)part.split * p.groups + part.group;
  return (first * part.lanes + lane) * part.rows + row;
}

// Finish and store staged sums, neighbours in memory by neighbouring threads; with several splits,
// store them among the parts as they are. `row_at` says where in the tile the r-th staged row lies.
template <int OP, bool LAST, int THREADS, class T, class A, int LANES, int STEP_ROW, int STEP_LANE,
          class RowAt>
static __device__ __forceinline__ void put(const Staged<A, LANES, STEP_ROW, STEP_LANE> &staged,
                                           RowAt row_at, const T *source, const T *w,
                                           const T *bias, T *out, A *parts, int splits,
                                           const Part &part, const ConvP &p) {
#pragma unroll 1
  for (int i = threadIdx.x; i < 64 * LANES; i += THREADS) {
    const int r = LAST ? i / LANES : i % 64, l = LAST ? i % LANES : i / 64;
    const int row = part.row + row_at(r), lane = part.lane + l;
    if (row >= part.rows || lane >= part.lanes) continue;
    const A sum = staged.sums[staged.at(r, l)];
    if (splits > 1) {
      parts[place(row, lane, part, p)] = sum;
    } else {
      finish_pixel<OP>(sum, row, part.group * part.lanes + lane, source, w, bias, out, p);
    }
  }
}

// Add the parts of FORWARD or DATA in their order, finish and store the sums; a thread a sum.
template <int OP, class T>
__global__ void __launch_bounds__(256)
fold_pixels(const typename Sum<T>::type *__restrict__ parts, const T *__restrict__ source,
            const T *__restrict__ w, const T *__restrict__ bias, T *__restrict__ out, int splits,
            const __grid_constant__ ConvP p) {
  const int rows = OP == DATA ? p.in_pixels : p.out_pixels;
  const long long n = (long long)rows * p.groups * (OP == DATA ? p.ci : p.co);
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
    typename Sum<T>::type sum = parts[i];
    for (int split = 1; split < splits; split++) sum += parts[split * n + i];
    finish_pixel<OP>(sum, (int)(i % rows), (int)(i / rows), source, w, bias, out, p);
  }
}
