// Sums that need a second kernel: partial sums folded in a fixed order, and sums over channels.
// Nothing is added atomically, so results are the same from run to run.

// out[i] = parts[0][i] + parts[1][i] + ..., in this order
template <class T, class A>
__global__ void __launch_bounds__(256)
fold(const A *__restrict__ parts, T *__restrict__ out, int splits, long long n) {
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
    A sum = parts[i];
    for (int split = 1; split < splits; split++) sum += parts[split * n + i];
    round_into(out[i], sum);
  }
}

// parts[split][o] = sum of dy[n,o,q] over a share of the pixels (n, q), in double. A block a sum:
// its threads' sums are added pairwise.
template <class T>
__global__ void __launch_bounds__(128)
channel_sums(const T *__restrict__ dy, double *__restrict__ parts, int splits, const __grid_constant__ ConvP p) {
  struct Shared {
    double sum[128];
  };
  CYCONV_SHARED(Shared, shared);
  const int channels = p.groups * p.co;
  const int o = blockIdx.x % channels, split = blockIdx.x / channels, t = threadIdx.x;
  const int begin = (int)((long long)p.out_pixels * split / splits);
  const int end = (int)((long long)p.out_pixels * (split + 1) / splits);
  double sum = 0;
  for (int m = begin + t; m < end; m += 128) {
    const Pixel out = out_pixel(m, p);
    sum += to_sum(dy[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])]);
  }
  shared.sum[t] = sum;
  for (int half = 64; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) shared.sum[t] += shared.sum[t + half];
  }
  if (t == 0) parts[(long long)split * channels + o] = shared.sum[0];
}
