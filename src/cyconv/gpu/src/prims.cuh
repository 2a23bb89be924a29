// What all kernels share: element types, the description of a problem, division by constants,
// offsets, and the way of a sum into memory.

struct half_t {
  unsigned short bits;
};
struct bfloat16_t {
  unsigned short bits;
};

// The type in which fast kernels add up products of T.
template <class T> struct Sum { typedef float type; };
template <> struct Sum<double> { typedef double type; };

// The type in which `direct` does: double for float, so that it is the accurate one.
template <class T> struct Wide { typedef float type; };
template <> struct Wide<float> { typedef double type; };
template <> struct Wide<double> { typedef double type; };

static __device__ __forceinline__ float to_sum(float value) { return value; }
static __device__ __forceinline__ double to_sum(double value) { return value; }
static __device__ __forceinline__ float to_sum(half_t value) {
  return float_of_half_bits(value.bits);
}
static __device__ __forceinline__ float to_sum(bfloat16_t value) {
  return __uint_as_float((unsigned)value.bits << 16);
}

// Round to nearest, ties to even.
static __device__ __forceinline__ void round_into(double &out, double value) { out = value; }
static __device__ __forceinline__ void round_into(float &out, float value) { out = value; }
static __device__ __forceinline__ void round_into(float &out, double value) { out = (float)value; }
static __device__ __forceinline__ void round_into(half_t &out, float value) {
  out.bits = half_bits_of_float(value);
}
static __device__ __forceinline__ void round_into(bfloat16_t &out, float value) {
  const unsigned bits = __float_as_uint(value);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const unsigned rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  out.bits = (unsigned short)(nan ? (bits >> 16 | 0x40u) : rounded >> 16);
}
// Sums of halves are in float wherever products are added; only channel sums are in double.
static __device__ __forceinline__ void round_into(half_t &out, double value) {
  round_into(out, (float)value);
}
static __device__ __forceinline__ void round_into(bfloat16_t &out, double value) {
  round_into(out, (float)value);
}

template <class T, class A> static __device__ __forceinline__ T from_sum(A value) {
  T out;
  round_into(out, value);
  return out;
}

// All types have zeros of zero bits.
template <class T> static __device__ __forceinline__ T zero() {
  T value = T();
  return value;
}

static __device__ __forceinline__ bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}
static __device__ __forceinline__ bool is_finite(double value) {
  return ((unsigned)__double2hiint(value) & 0x7ff00000u) != 0x7ff00000u;
}

// N neighbours that move as one.
template <class T, int N> struct __align__(sizeof(T) * N) Vec {
  T of[N];
};

// --- the problem ------------------------------------------------------------------------------

// Division by a number that the host knows, as a multiplication (T. Granlund, P. Montgomery,
// "Division by invariant integers using multiplication", 1994).
struct Divisor {
  unsigned value, multiplier, shift;
};

enum Activation {
  NONE,
  RELU,
  RELU6,
  LEAKY_RELU,
  SILU,
  HARDSWISH,
  HARDSIGMOID,
  SIGMOID,
  TANH,
  GELU
};

// Always three spatial axes: leading ones stand in for the axes that a problem does not have.
// x, w and y are the arrays of the forward convolution, whichever of them a kernel writes.
// Strides are in elements, over (batch or output channel, channel, spatial axes). The host has
// checked that every count below is less than 2^31; products of a count and a stride are not.
struct ConvP {
  long long xs[5], ws[5], ys[5];
  long long residual;       // bytes from an element of the result to what is added to it; 0: none
  double alpha;             // of leaky_relu and hardsigmoid
  int n, groups, ci, co;    // batch, groups, channels of one group of x and of y
  int in[3], k[3], out[3];  // sizes of x, w and y
  int stride[3], pad[3], dil[3];  // pad: before the axis, may be negative
  int taps;                 // k[0] k[1] k[2]
  int in_pixels;            // n in[0] in[1] in[2]
  int out_pixels;           // n out[0] out[1] out[2]
  int activation;
  int last;                 // whether channels run fastest in memory (channels-last layouts)
  Divisor by_in[3], by_out[3], by_k[3], by_stride[3], by_ci, by_co, by_taps;
};
static_assert(sizeof(ConvP) == 424, "ConvP is what params.CONVP says");

// n / by.value, for 0 <= n < 2^31
static __device__ __forceinline__ int divide(int n, const Divisor &by) {
  return by.value == 1 ? n : (int)(__umulhi((unsigned)n, by.multiplier) >> by.shift);
}

// The remainder; the quotient goes into `quotient`, which may be n itself.
static __device__ __forceinline__ int divmod(int n, const Divisor &by, int &quotient) {
  const int q = divide(n, by);
  const int rest = n - q * (int)by.value;
  quotient = q;
  return rest;
}

// --- indices and offsets ----------------------------------------------------------------------

struct Pixel {
  int n, i[3];
};

static __device__ __forceinline__ Pixel pixel_of(int m, const Divisor (&size)[3]) {
  Pixel pixel;
  for (int a = 2; a >= 0; a--) pixel.i[a] = divmod(m, size[a], m);
  pixel.n = m;
  return pixel;
}
static __device__ __forceinline__ Pixel out_pixel(int m, const ConvP &p) {
  return pixel_of(m, p.by_out);
}
static __device__ __forceinline__ Pixel in_pixel(int m, const ConvP &p) {
  return pixel_of(m, p.by_in);
}

struct Tap {
  int r[3];
};

static __device__ __forceinline__ Tap tap_of(int t, const ConvP &p) {
  Tap tap;
  for (int a = 2; a >= 0; a--) tap.r[a] = divmod(t, p.by_k[a], t);
  return tap;
}

// One term of the sum over channels and taps; LAST: channels run fastest, as in the memory of
// channels-last weights, else taps do.
struct Depth {
  int c;
  Tap tap;
};

template <bool LAST>
static __device__ __forceinline__ Depth depth_of(int k, const Divisor &channels, const ConvP &p) {
  Depth depth;
  int t;
  if (LAST) {
    depth.c = divmod(k, channels, t);
  } else {
    t = divmod(k, p.by_taps, depth.c);
  }
  depth.tap = tap_of(t, p);
  return depth;
}

static __device__ __forceinline__ Depth depth_of(int k, const Divisor &channels, const ConvP &p) {
  return p.last ? depth_of<true>(k, channels, p) : depth_of<false>(k, channels, p);
}

static __device__ __forceinline__ long long at(const long long (&s)[5], int first, int channel,
                                               int i0, int i1, int i2) {
  return first * s[0] + channel * s[1] + i0 * s[2] + i1 * s[3] + i2 * s[4];
}
// c: channel of x, counted over all groups
static __device__ __forceinline__ long long x_at(const ConvP &p, int n, int c, int i0, int i1,
                                                 int i2) {
  return at(p.xs, n, c, i0, i1, i2);
}
// o: channel of y over all groups; c: channel of x within its group
static __device__ __forceinline__ long long w_at(const ConvP &p, int o, int c, const Tap &tap) {
  return at(p.ws, o, c, tap.r[0], tap.r[1], tap.r[2]);
}
static __device__ __forceinline__ long long y_at(const ConvP &p, int n, int o, int i0, int i1,
                                                 int i2) {
  return at(p.ys, n, o, i0, i1, i2);
}

// Where along an axis a tap of an output reads the input, and whether that is inside.
static __device__ __forceinline__ int input_index(const ConvP &p, int axis, int out, int tap) {
  return out * p.stride[axis] + tap * p.dil[axis] - p.pad[axis];
}
static __device__ __forceinline__ bool inside(int i, int size) {
  return (unsigned)i < (unsigned)size;
}

// What a tap of an output pixel reads: x, or a zero of the padding, which takes part as any other.
template <class T>
static __device__ __forceinline__ T read_input(const T *__restrict__ x, const ConvP &p,
                                               const Pixel &out, int c, const Tap &tap) {
  const int i0 = input_index(p, 0, out.i[0], tap.r[0]);
  const int i1 = input_index(p, 1, out.i[1], tap.r[1]);
  const int i2 = input_index(p, 2, out.i[2], tap.r[2]);
  const bool in = inside(i0, p.in[0]) && inside(i1, p.in[1]) && inside(i2, p.in[2]);
  return in ? x[x_at(p, out.n, c, i0, i1, i2)] : zero<T>();
}

// The i-th element in memory of an image-shaped array with this many channels and pixels an image:
// its channel, and its pixel counted over the batch.
static __device__ __forceinline__ int pixel_and_channel(long long i, int channels, int per_image,
                                                        const ConvP &p, int &c) {
  if (p.last) {
    c = (int)(i % channels);
    return (int)(i / channels);
  }
  const long long plane = i / per_image;
  c = (int)(plane % channels);
  return (int)(plane / channels) * per_image + (int)(i % per_image);
}

// --- from a sum to memory ---------------------------------------------------------------------

static __device__ __forceinline__ float exponential(float v) { return expf(v); }
static __device__ __forceinline__ double exponential(double v) { return exp(v); }
static __device__ __forceinline__ float hyperbolic_tangent(float v) { return tanhf(v); }
static __device__ __forceinline__ double hyperbolic_tangent(double v) { return tanh(v); }
static __device__ __forceinline__ float error_function(float v) { return erff(v); }
static __device__ __forceinline__ double error_function(double v) { return erf(v); }

template <class A> static __device__ __forceinline__ A sigmoid(A v) {
  return A(1) / (A(1) + exponential(-v));
}

// Bounds that keep NaN, which the minimum and maximum of CUDA do not.
template <class A> static __device__ __forceinline__ A at_least(A low, A v) {
  return v < low ? low : v;
}
template <class A> static __device__ __forceinline__ A at_most(A high, A v) {
  return v > high ? high : v;
}
template <class A> static __device__ __forceinline__ A hardsigmoid(A v, A alpha) {
  return at_most(A(1), at_least(A(0), alpha * v + A(0.5)));
}

template <class A> static __device__ __forceinline__ A activate(A v, const ConvP &p) {
  switch (p.activation) {
    case RELU: return at_least(A(0), v);
    case RELU6: return at_most(A(6), at_least(A(0), v));
    case LEAKY_RELU: return v < A(0) ? v * A(p.alpha) : v;
    case SILU: return v * sigmoid(v);
    case HARDSWISH: return v * hardsigmoid(v, A(1) / A(6));
    case HARDSIGMOID: return hardsigmoid(v, A(p.alpha));
    case SIGMOID: return sigmoid(v);
    case TANH: return hyperbolic_tangent(v);
    case GELU: return A(0.5) * v * (A(1) + error_function(v * A(0.70710678118654752440)));
    default: return v;
  }
}

// What becomes of a sum, bias included, on its way to element `out` of the result.
template <class T, class A>
static __device__ __forceinline__ A finish(const T *out, A value, const ConvP &p) {
  if (p.residual) {
    const char *address = reinterpret_cast<const char *>(out) + p.residual;
    value += A(to_sum(*reinterpret_cast<const T *>(address)));
  }
  return activate(value, p);
}

// Finish a sum and round it once.
template <class T, class A>
static __device__ __forceinline__ void store(T *out, A value, const ConvP &p) {
  round_into(*out, finish(out, value, p));
}
