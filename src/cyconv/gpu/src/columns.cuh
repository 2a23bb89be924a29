// Patches as the columns of a matrix, for a library that multiplies matrices. All matrices are in
// the type of sums, and have a column for each of `count` pixels from `first` on; element (row,
// pixel) of group g is at (g rows + row) count + pixel. A thread an element, pixels fastest.

#define CYCONV_FOR_ELEMENTS(i, total)                                                             \
  for (long long i = (long long)blockIdx.x * 256 + threadIdx.x; i < (total);                      \
       i += (long long)gridDim.x * 256)

// columns[g][k][m] = what term k of output pixel m reads of x; k as the weights lie in memory
template <class T>
__global__ void __launch_bounds__(256)
columns_fwd(const T *__restrict__ x, typename Sum<T>::type *__restrict__ columns, int first,
            int count, const __grid_constant__ ConvP p) {
  const int rows = p.ci * p.taps;
  CYCONV_FOR_ELEMENTS(i, (long long)p.groups * rows * count) {
    const long long row = i / count;
    const Depth at = depth_of((int)(row % rows), p.by_ci, p);
    const Pixel out = out_pixel(first + (int)(i - row * count), p);
    columns[i] = to_sum(read_input(x, p, out, (int)(row / rows) * p.ci + at.c, at.tap));
  }
}

// columns[g][o taps + u][m] = dy[n, o, i + pad - u dil] of input pixel m = (n, i), in a phase of
// stride 1; zero where there is no such output
template <class T>
__global__ void __launch_bounds__(256)
columns_dx(const T *__restrict__ dy, typename Sum<T>::type *__restrict__ columns, int first,
           int count, const __grid_constant__ ConvP p) {
  const int rows = p.co * p.taps;
  CYCONV_FOR_ELEMENTS(i, (long long)p.groups * rows * count) {
    const long long row = i / count;
    const Depth at = depth_of<false>((int)(row % rows), p.by_co, p);
    const Pixel in = in_pixel(first + (int)(i - row * count), p);
    int q[3];
    bool exists = true;
    for (int a = 0; a < 3; a++) {
      q[a] = in.i[a] + p.pad[a] - at.tap.r[a] * p.dil[a];
      exists = exists && inside(q[a], p.out[a]);
    }
    const int o = (int)(row / rows) * p.co + at.c;
    columns[i] = to_sum(exists ? dy[y_at(p, in.n, o, q[0], q[1], q[2])] : zero<T>());
  }
}

// matrix[o][m] = y[n, o, q] of output pixel m = (n, q)
template <class T>
__global__ void __launch_bounds__(256)
columns_of_y(const T *__restrict__ y, typename Sum<T>::type *__restrict__ matrix, int first,
             int count, const __grid_constant__ ConvP p) {
  CYCONV_FOR_ELEMENTS(i, (long long)p.groups * p.co * count) {
    const int o = (int)(i / count);
    const Pixel out = out_pixel(first + (int)(i % count), p);
    matrix[i] = to_sum(y[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])]);
  }
}

// y[n, o, q] = matrix[o][m] + bias[o]
template <class T>
__global__ void __launch_bounds__(256)
columns_to_y(const typename Sum<T>::type *__restrict__ matrix, const T *__restrict__ bias,
             T *__restrict__ y, int first, int count, const __grid_constant__ ConvP p) {
  CYCONV_FOR_ELEMENTS(i, (long long)p.groups * p.co * count) {
    const int o = (int)(i / count);
    const Pixel out = out_pixel(first + (int)(i % count), p);
    typename Sum<T>::type sum = matrix[i];
    if (bias) sum += to_sum(bias[o]);
    store(&y[y_at(p, out.n, o, out.i[0], out.i[1], out.i[2])], sum, p);
  }
}

// dx[n, c, i] = matrix[c][m] + bias[c] of input pixel m = (n, i). A zero of the columns that met an
// infinite weight may be a pair that does not exist: such sums are computed again.
template <class T>
__global__ void __launch_bounds__(256)
columns_to_dx(const typename Sum<T>::type *__restrict__ matrix, const T *__restrict__ dy,
              const T *__restrict__ w, const T *__restrict__ bias, T *__restrict__ dx, int first,
              int count, const __grid_constant__ ConvP p) {
  typedef typename Sum<T>::type A;
  CYCONV_FOR_ELEMENTS(i, (long long)p.groups * p.ci * count) {
    const int c = (int)(i / count);
    const Pixel in = in_pixel(first + (int)(i % count), p);
    A sum = matrix[i];
    if (!is_finite(sum)) sum = A(dx_by_definition(dy, w, p, in.n, c, in.i[0], in.i[1], in.i[2]));
    if (bias) sum += to_sum(bias[c]);
    store(&dx[x_at(p, in.n, c, in.i[0], in.i[1], in.i[2])], sum, p);
  }
}
