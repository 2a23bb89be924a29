// Max pooling: the largest value of each window and its place, and what is added back there. A
// thread an element, neighbours in memory by neighbouring threads; nothing is added atomically.
//
// The problem is that of a convolution with as many channels of y as of x in one group. A place is
// the index of a cell in its volume, (d * height + h) * width + w, and -1 for a window over nothing
// but padding, whose value is minus infinity. The first of equal values wins, and NaN over all.
// Places lie as y does.

template <class T>
__global__ void __launch_bounds__(256)
largest(const T *__restrict__ x, T *__restrict__ y, int *__restrict__ places,
        const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  const int per_image = p.out[0] * p.out[1] * p.out[2];
  const long long total = (long long)p.out_pixels * p.co;
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int c;
    const Pixel out = out_pixel(pixel_and_channel(i, p.co, per_image, p, c), p);
    A best = A(__uint_as_float(0xff800000u));
    int place = -1;
    Tap r;
    for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++) {
      const int i0 = input_index(p, 0, out.i[0], r.r[0]);
      if (!inside(i0, p.in[0])) continue;
      for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++) {
        const int i1 = input_index(p, 1, out.i[1], r.r[1]);
        if (!inside(i1, p.in[1])) continue;
        for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++) {
          const int i2 = input_index(p, 2, out.i[2], r.r[2]);
          if (!inside(i2, p.in[2])) continue;
          const A value = to_sum(x[x_at(p, out.n, c, i0, i1, i2)]);
          if (place >= 0 && !(value > best) && value == value) continue;
          best = value;
          place = (i0 * p.in[1] + i1) * p.in[2] + i2;
        }
      }
    }
    const long long offset = y_at(p, out.n, c, out.i[0], out.i[1], out.i[2]);
    round_into(y[offset], best);
    places[offset] = place;
  }
}

// dx[n, c, i] = sum of dy over the windows whose largest value was there, in the order of taps and
// rounded once
template <class T>
__global__ void __launch_bounds__(256)
put_back(const T *__restrict__ dy, const int *__restrict__ places, T *__restrict__ dx,
         const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  const int per_image = p.in[0] * p.in[1] * p.in[2];
  const long long total = (long long)p.in_pixels * p.ci;
  const long long step = (long long)gridDim.x * 256;
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < total; i += step) {
    int c;
    const Pixel in = in_pixel(pixel_and_channel(i, p.ci, per_image, p, c), p);
    const int place = (in.i[0] * p.in[1] + in.i[1]) * p.in[2] + in.i[2];
    A sum = A(0);
    Tap r;
    for (r.r[0] = 0; r.r[0] < p.k[0]; r.r[0]++) {
      const int q0 = output_index(p, 0, in.i[0], r.r[0]);
      if (q0 < 0) continue;
      for (r.r[1] = 0; r.r[1] < p.k[1]; r.r[1]++) {
        const int q1 = output_index(p, 1, in.i[1], r.r[1]);
        if (q1 < 0) continue;
        for (r.r[2] = 0; r.r[2] < p.k[2]; r.r[2]++) {
          const int q2 = output_index(p, 2, in.i[2], r.r[2]);
          if (q2 < 0) continue;
          const long long offset = y_at(p, in.n, c, q0, q1, q2);
          if (places[offset] == place) sum += to_sum(dy[offset]);
        }
      }
    }
    round_into(dx[x_at(p, in.n, c, in.i[0], in.i[1], in.i[2])], sum);
  }
}
