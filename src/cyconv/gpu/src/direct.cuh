// The definition, one thread an element: serves every problem, sums float32 in float64, and is what
// other kernels are compared with. Threads of a warp take neighbours in memory. Sums run in one
// order, whatever the launch.

// y[n,o,p] = bias[o] + sum x[n,c, p stride + r dil - pad] w[o,c,r]
template <class T>
__global__ void __launch_bounds__(256)
direct_fwd(const T *__restrict__ x, const T *__restrict__ w, const T *__restrict__ bias,
           T *__restrict__ y, const __grid_constant__ ConvP p) {
  typedef typename Wide<T>::type A;
  const int channels = p.groups * p.co;
  const int per_image = p.out[0] * p.out[1] * p.out[2];
  const long long total = (long long)p.out_pixels * channels;
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int o;
    const Pixel out = out_pixel(pixel_and_channel(i, channels, per_image, p, o), p);
    const int first = divide(o, p.by_co) * p.ci;
    A sum = A(0);
    for (int c = 0; c < p.ci; c++) {
      Tap r;
      for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++)
        for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++)
          for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++)
            sum += A(to_sum(read_input(x, p, out, first + c, r))) * A(to_sum(w[w_at(p, o, c, r)]));
    }
    if (bias) sum += A(to_sum(bias[o]));
    store(&y[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])], sum, p);
  }
}

// Which output along an axis reads input i by a tap; -1 if there is none.
static __device__ __forceinline__ int output_index(const ConvP &p, int axis, int i, int tap) {
  int u = i + p.pad[axis] - tap * p.dil[axis];
  if (u < 0) return -1;
  const int rest = divmod(u, p.by_stride[axis], u);
  return rest == 0 && u < p.out[axis] ? u : -1;
}

// sum dy[n,o,q] w[o,c,r] over the pairs (q, r) that read input element (n, c, i); c over all groups
template <class T>
static __device__ __noinline__ typename Wide<T>::type
dx_by_definition(const T *__restrict__ dy, const T *__restrict__ w, const ConvP &p, int n, int c,
                 int i0, int i1, int i2) {
  typedef typename Wide<T>::type A;
  int group;
  const int inner = divmod(c, p.by_ci, group);
  A sum = A(0);
  Tap r;
  for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++) {
    const int q0 = output_index(p, 0, i0, r.r[0]);
    if (q0 < 0) continue;
    for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++) {
      const int q1 = output_index(p, 1, i1, r.r[1]);
      if (q1 < 0) continue;
      for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++) {
        const int q2 = output_index(p, 2, i2, r.r[2]);
        if (q2 < 0) continue;
        for (int o = group * p.co; o < (group + 1) * p.co; o++)
          sum += A(to_sum(dy[y_at(p, n, o, q0, q1, q2)])) * A(to_sum(w[w_at(p, o, inner, r)]));
      }
    }
  }
  return sum;
}

// dx[n,c,i] = bias[c] + sum dy[n,o,q] w[o,c,r] over q stride + r dil - pad = i
template <class T>
__global__ void __launch_bounds__(256)
direct_dx(const T *__restrict__ dy, const T *__restrict__ w, const T *__restrict__ bias,
          T *__restrict__ dx, const __grid_constant__ ConvP p) {
  typedef typename Wide<T>::type A;
  const int channels = p.groups * p.ci;
  const int per_image = p.in[0] * p.in[1] * p.in[2];
  const long long total = (long long)p.in_pixels * channels;
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int c;
    const Pixel in = in_pixel(pixel_and_channel(i, channels, per_image, p, c), p);
    A sum = dx_by_definition(dy, w, p, in.n, c, in.i[0], in.i[1], in.i[2]);
    if (bias) sum += A(to_sum(bias[c]));
    store(&dx[x_at(p, in.n, c, in.i[0], in.i[1], in.i[2])], sum, p);
  }
}

// parts[split][dw as it lies] = sum x[n,c, q stride + r dil - pad] dy[n,o,q] over a share of the
// pixels (n, q); `fold` adds the shares.
template <class T>
__global__ void __launch_bounds__(256)
direct_dw(const T *__restrict__ x, const T *__restrict__ dy,
          typename Wide<T>::type *__restrict__ parts, int splits, const __grid_constant__ ConvP p) {
  typedef typename Wide<T>::type A;
  const int depth = p.ci * p.taps;
  const long long elements = (long long)p.groups * p.co * depth;
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < elements * splits; i += step) {
    const int split = (int)(i / elements);
    const int o = (int)(i % elements / depth);
    const Depth at = depth_of((int)(i % depth), p.by_ci, p);
    const int c = divide(o, p.by_co) * p.ci + at.c;
    const int begin = (int)((long long)p.out_pixels * split / splits);
    const int end = (int)((long long)p.out_pixels * (split + 1) / splits);
    A sum = A(0);
    for (int m = begin; m < end; m++) {
      const Pixel out = out_pixel(m, p);
      sum += A(to_sum(read_input(x, p, out, c, at.tap))) *
             A(to_sum(dy[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])]));
    }
    parts[i] = sum;
  }
}
