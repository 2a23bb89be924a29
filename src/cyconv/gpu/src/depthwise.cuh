// Groups of one input channel: every output channel reads one image. Such products move more memory
// than they multiply, so the kernels are about reading each element few times, by whole vectors.
//
// `lanes`: a thread has V neighbouring channels of a pixel (channels-last memory, one output a
// group), or, with V = 1, any pixel of any layout. `rows`: a block has 8 rows of 32 outputs of a
// plane, whose inputs it first copies to shared memory.
//
// Data gradients are phases: stride 1, and a padding that may be negative. Padding takes part in
// forward sums; a data gradient adds only pairs that exist.

template <class T, int V>
static __device__ __forceinline__ void multiply_add(typename Sum<T>::type (&sum)[V],
                                                    const T *__restrict__ values,
                                                    const T *__restrict__ w, const ConvP &p, int o,
                                                    const Tap &tap, bool exists) {
  Vec<T, V> in;
  for (int v = 0; v < V; v++) in.of[v] = zero<T>();
  if (exists) in = *reinterpret_cast<const Vec<T, V> *>(values);
#pragma unroll
  for (int v = 0; v < V; v++) sum[v] += to_sum(in.of[v]) * to_sum(w[w_at(p, o + v, 0, tap)]);
}

template <class T, int V>
static __device__ __forceinline__ void add_bias_and_store(typename Sum<T>::type (&sum)[V],
                                                          const T *__restrict__ bias,
                                                          T *__restrict__ out, int channel,
                                                          const ConvP &p) {
  Vec<T, V> rounded;
#pragma unroll
  for (int v = 0; v < V; v++) {
    if (bias) sum[v] += to_sum(bias[channel + v]);
    round_into(rounded.of[v], finish(out + v, sum[v], p));
  }
  *reinterpret_cast<Vec<T, V> *>(out) = rounded;
}

// y[n,o,q] = bias[o] + sum_r x[n, o / co, q stride + r dil - pad] w[o,r]
template <class T, int V>
__global__ void __launch_bounds__(256)
depthwise_fwd(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,
              T *__restrict__ y, const __grid_constant__ ConvP p) {
  const int channels = p.groups * p.co / V;
  const long long total = (long long)p.out_pixels * channels;
  const long long step = (long long)gridDim.x * 256;
  const int per_image = p.out[0] * p.out[1] * p.out[2];
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int o;
    const Pixel out = out_pixel(pixel_and_channel(i, channels, per_image, p, o), p);
    o *= V;
    const int c = divide(o, p.by_co);
    typename Sum<T>::type sum[V] = {};
    Tap r;
    for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++) {
      const int i0 = input_index(p, 0, out.i[0], r.r[0]);
      for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++) {
        const int i1 = input_index(p, 1, out.i[1], r.r[1]);
        const bool row = inside(i0, p.in[0]) && inside(i1, p.in[1]);
        for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++) {
          const int i2 = input_index(p, 2, out.i[2], r.r[2]);
          const bool in = row && inside(i2, p.in[2]);
          multiply_add<T, V>(sum, in ? x + x_at(p, out.n, c, i0, i1, i2) : x, w, p, o, r, in);
        }
      }
    }
    add_bias_and_store<T, V>(sum, bias, y + y_at(p, out.n, o, out.i[0], out.i[1], out.i[2]), o, p);
  }
}

// dx[n,c,i] = bias[c] + sum_{o,u} dy[n, o, i + pad - u dil] w[o,u] over the co outputs of channel c
template <class T, int V>
__global__ void __launch_bounds__(256)
depthwise_dx(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ bias,
             T *__restrict__ dx, const __grid_constant__ ConvP p) {
  const int channels = p.groups / V;
  const long long total = (long long)p.in_pixels * channels;
  const long long step = (long long)gridDim.x * 256;
  const int per_image = p.in[0] * p.in[1] * p.in[2];
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int c;
    const Pixel in = in_pixel(pixel_and_channel(i, channels, per_image, p, c), p);
    c *= V;
    typename Sum<T>::type sum[V] = {};
    Tap u;
    for (u.r[0] = 0; u.r[0] < p.k[0]; u.r[0]++) {
      const int q0 = in.i[0] + p.pad[0] - u.r[0] * p.dil[0];
      for (u.r[1] = 0; u.r[1] < p.k[1]; u.r[1]++) {
        const int q1 = in.i[1] + p.pad[1] - u.r[1] * p.dil[1];
        if (!inside(q0, p.out[0]) || !inside(q1, p.out[1])) continue;
        for (u.r[2] = 0; u.r[2] < p.k[2]; u.r[2]++) {
          const int q2 = in.i[2] + p.pad[2] - u.r[2] * p.dil[2];
          if (!inside(q2, p.out[2])) continue;
          for (int o = c * p.co; o < (c + 1) * p.co; o++)
            multiply_add<T, V>(sum, dy + y_at(p, in.n, o, q0, q1, q2), w, p, o, u, true);
        }
      }
    }
    add_bias_and_store<T, V>(sum, bias, dx + x_at(p, in.n, c, in.i[0], in.i[1], in.i[2]), c, p);
  }
}

// --- rows -------------------------------------------------------------------------------------

// Which part of which plane a block has: planes are (n, channel, axis 0), parts are 8 x 32 pixels.
struct Part {
  int n, channel, i0, top, left;
};

static __device__ __forceinline__ Part part_of(int block, int channels, const int (&size)[3]) {
  const int across = (size[2] + 31) / 32, down = (size[1] + 7) / 8;
  Part part;
  part.left = block % across * 32;
  block /= across;
  part.top = block % down * 8;
  block /= down;
  part.i0 = block % size[0];
  block /= size[0];
  part.channel = block % channels;
  part.n = block / channels;
  return part;
}

// Copy a rectangle of a plane to shared memory, zeros where the plane ends. `step` is the plane's
// offset of a row and of a column; `exists` is false for a plane that lies outside.
template <class T, class A>
static __device__ __forceinline__ void copy_tile(A *tile, int height, int width, const T *plane,
                                                 long long row_step, long long column_step,
                                                 int top, int left, int rows, int columns,
                                                 bool exists) {
  for (int i = threadIdx.x / 32; i < height; i += 8)
    for (int j = threadIdx.x % 32; j < width; j += 32) {
      const bool in = exists && inside(top + i, rows) && inside(left + j, columns);
      tile[i * width + j] =
          in ? to_sum(plane[(top + i) * row_step + (left + j) * column_step]) : A(0);
    }
}

template <class T>
__global__ void __launch_bounds__(256)
depthwise_fwd_rows(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,
                   T *__restrict__ y, const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  CYCONV_DYNAMIC(A, tile_begin);
  A *tile = &tile_begin;
  const Part part = part_of(blockIdx.x, p.groups * p.co, p.out);
  const int o = part.channel, c = divide(o, p.by_co);
  const int i = threadIdx.x / 32, j = threadIdx.x % 32;
  const int height = 7 * p.stride[1] + (p.k[1] - 1) * p.dil[1] + 1;
  const int width = 31 * p.stride[2] + (p.k[2] - 1) * p.dil[2] + 1;
  A sum = A(0);
  Tap r;
  for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++) {
    const int i0 = input_index(p, 0, part.i0, r.r[0]);
    const bool exists = inside(i0, p.in[0]);
    if (r.r[0] > 0) __syncthreads();
    copy_tile(tile, height, width, exists ? x + x_at(p, part.n, c, i0, 0, 0) : x, p.xs[3], p.xs[4],
              part.top * p.stride[1] - p.pad[1], part.left * p.stride[2] - p.pad[2], p.in[1],
              p.in[2], exists);
    __syncthreads();
    for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++)
      for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++)
        sum += tile[(i * p.stride[1] + r.r[1] * p.dil[1]) * width + j * p.stride[2] +
                    r.r[2] * p.dil[2]] *
               to_sum(w[w_at(p, o, 0, r)]);
  }
  if (part.top + i >= p.out[1] || part.left + j >= p.out[2]) return;
  if (bias) sum += to_sum(bias[o]);
  store(&y[y_at(p, part.n, o, part.i0, part.top + i, part.left + j)], sum, p);
}

template <class T>
__global__ void __launch_bounds__(256)
depthwise_dx_rows(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ bias,
                  T *__restrict__ dx, const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  CYCONV_DYNAMIC(A, tile_begin);
  A *tile = &tile_begin;
  const Part part = part_of(blockIdx.x, p.groups, p.in);
  const int c = part.channel;
  const int i = threadIdx.x / 32, j = threadIdx.x % 32;
  const int below = (p.k[1] - 1) * p.dil[1], right = (p.k[2] - 1) * p.dil[2];
  const int height = 8 + below, width = 32 + right;
  A sum = A(0);
  bool again = false;
  for (int o = c * p.co; o < (c + 1) * p.co; o++) {
    Tap u;
    for (u.r[0] = 0; u.r[0] < p.k[0]; u.r[0]++) {
      const int q0 = part.i0 + p.pad[0] - u.r[0] * p.dil[0];
      if (!inside(q0, p.out[0])) continue;
      if (again) __syncthreads();
      again = true;
      copy_tile(tile, height, width, dy + y_at(p, part.n, o, q0, 0, 0), p.ys[3], p.ys[4],
                part.top + p.pad[1] - below, part.left + p.pad[2] - right, p.out[1], p.out[2],
                true);
      __syncthreads();
      for (u.r[1] = 0; u.r[1] < p.k[1]; u.r[1]++)
        for (u.r[2] = 0; u.r[2] < p.k[2]; u.r[2]++)
          sum += tile[(i + below - u.r[1] * p.dil[1]) * width + j + right - u.r[2] * p.dil[2]] *
                 to_sum(w[w_at(p, o, 0, u)]);
    }
  }
  const int i1 = part.top + i, i2 = part.left + j;
  if (i1 >= p.in[1] || i2 >= p.in[2]) return;
  // A zero of the tile that met an infinite weight may be a pair that does not exist.
  if (!is_finite(sum)) sum = A(dx_by_definition(dy, w, p, part.n, c, part.i0, i1, i2));
  if (bias) sum += to_sum(bias[c]);
  store(&dx[x_at(p, part.n, c, part.i0, i1, i2)], sum, p);
}

// --- weight gradient --------------------------------------------------------------------------

// parts[split][o][r] = sum of x[n, o / co, q stride + r dil - pad] dy[n,o,q] over a share of the
// pixels (n, q). A block has CHANNELS outputs and 8 taps; its other threads share the pixels.
template <class T, int CHANNELS>
__global__ void __launch_bounds__(128)
depthwise_dw(const T *__restrict__ x, const T *__restrict__ dy,
             typename Sum<T>::type *__restrict__ parts, int splits,
             const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  constexpr int TAPS = 8, SHARES = 128 / CHANNELS;
  struct Shared {
    A sum[TAPS][128];
  };
  CYCONV_SHARED(Shared, shared);
  const int channels = p.groups * p.co;
  const int across = (channels + CHANNELS - 1) / CHANNELS, down = (p.taps + TAPS - 1) / TAPS;
  const int o = blockIdx.x % across * CHANNELS + threadIdx.x % CHANNELS;
  const int first = blockIdx.x / across % down * TAPS;
  const int split = blockIdx.x / across / down;
  const int share = threadIdx.x / CHANNELS;
  const int begin = (int)((long long)p.out_pixels * split / splits);
  const int end = (int)((long long)p.out_pixels * (split + 1) / splits);
  A sum[TAPS] = {};
  if (o < channels) {
    const int c = divide(o, p.by_co);
    for (int m = begin + share; m < end; m += SHARES) {
      const Pixel out = out_pixel(m, p);
      const A g = to_sum(dy[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])]);
#pragma unroll
      for (int t = 0; t < TAPS; t++)
        if (first + t < p.taps) sum[t] += to_sum(read_input(x, p, out, c, tap_of(first + t, p))) * g;
    }
  }
#pragma unroll
  for (int t = 0; t < TAPS; t++) shared.sum[t][threadIdx.x] = sum[t];
  for (int half = SHARES / 2; half > 0; half /= 2) {
    __syncthreads();
    if (share < half)
#pragma unroll
      for (int t = 0; t < TAPS; t++)
        shared.sum[t][threadIdx.x] += shared.sum[t][threadIdx.x + half * CHANNELS];
  }
  if (share == 0 && o < channels)
    for (int t = 0; t < TAPS && first + t < p.taps; t++)
      parts[((long long)split * channels + o) * p.taps + first + t] = shared.sum[t][threadIdx.x];
}
