/* The one body of winograd.h's microkernels, in GNU vector extensions; a compiler without them gets
 * vectors of one lane. No include guard: winograd_isa.h includes it once per type. Needs REAL, SUFFIX,
 * VBYTES, MR.
 */
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(op) JOIN(op, SUFFIX)

#if defined(__GNUC__) && !defined(CYCONV_SCALAR)
#define VL ((int)(VBYTES / sizeof(REAL)))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 36")
#endif
typedef REAL NAME(vec) __attribute__((vector_size(VBYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL NAME(reg) __attribute__((vector_size(VBYTES)));
#else
#define VL 1
#define ALWAYS_INLINE static inline
#define UNROLL
typedef REAL NAME(vec);
typedef REAL NAME(reg);
#endif
#define LOAD(p) (*(const NAME(vec) *)(p))
#define STORE(p, v) (*(NAME(vec) *)(p) = (v))
#define C(number) ((REAL)(number))

/* One-dimensional transforms. Elements of the arguments are `s` apart, of the results `t`; n is the
 * number of points: 6 or 4, or 1 for an axis without taps. A and B are the points besides 0. */
#define A 0.75
#define B 1.5

ALWAYS_INLINE void NAME(input1)(const int n, const NAME(reg) *d, int s, NAME(reg) *v, int t)
{
    if (n == 6) {
        const NAME(reg) p = d[4 * s] - C(B * B) * d[2 * s], q = d[3 * s] - C(B * B) * d[s];
        const NAME(reg) f = d[4 * s] - C(A * A) * d[2 * s], g = d[3 * s] - C(A * A) * d[s];
        v[0] = d[4 * s] - C(A * A + B * B) * d[2 * s] + C(A * A * B * B) * d[0];
        v[t] = p + C(A) * q;
        v[2 * t] = p - C(A) * q;
        v[3 * t] = f + C(B) * g;
        v[4 * t] = f - C(B) * g;
        v[5 * t] = d[5 * s] - C(A * A + B * B) * d[3 * s] + C(A * A * B * B) * d[s];
    } else if (n == 4) {
        v[0] = d[0] - d[2 * s];
        v[t] = d[s] + d[2 * s];
        v[2 * t] = d[2 * s] - d[s];
        v[3 * t] = d[3 * s] - d[s];
    } else
        v[0] = d[0];
}

ALWAYS_INLINE void NAME(output1)(const int n, const NAME(reg) *m, int s, NAME(reg) *y, int t)
{
    if (n == 6) {
        const NAME(reg) p = m[s] + m[2 * s], q = m[s] - m[2 * s];
        const NAME(reg) f = m[3 * s] + m[4 * s], g = m[3 * s] - m[4 * s];
        y[0] = m[0] + p + f;
        y[t] = C(A) * q + C(B) * g;
        y[2 * t] = C(A * A) * p + C(B * B) * f;
        y[3 * t] = m[5 * s] + C(A * A * A) * q + C(B * B * B) * g;
    } else if (n == 4) {
        y[0] = m[0] + m[s] + m[2 * s];
        y[t] = m[s] - m[2 * s] + m[3 * s];
    } else
        y[0] = m[0];
}

/* G: a row of the point p is (1, p, p*p) over the product of p's distances from the other points. */
#define G0 (1 / (A * A * B * B))
#define GA (1 / (2 * A * A * (A * A - B * B)))
#define GB (1 / (2 * B * B * (B * B - A * A)))

ALWAYS_INLINE void NAME(weights1)(const int n, const NAME(reg) *g, int s, NAME(reg) *u, int t)
{
    if (n == 6) {
        const NAME(reg) p = C(GA) * g[0] + C(GA * A * A) * g[2 * s], q = C(GA * A) * g[s];
        const NAME(reg) f = C(GB) * g[0] + C(GB * B * B) * g[2 * s], h = C(GB * B) * g[s];
        u[0] = C(G0) * g[0];
        u[t] = p + q;
        u[2 * t] = p - q;
        u[3 * t] = f + h;
        u[4 * t] = f - h;
        u[5 * t] = g[2 * s];
    } else if (n == 4) {
        const NAME(reg) p = C(0.5) * (g[0] + g[2 * s]), q = C(0.5) * g[s];
        u[0] = g[0];
        u[t] = p + q;
        u[2 * t] = p - q;
        u[3 * t] = g[2 * s];
    } else
        u[0] = g[0];
}

ALWAYS_INLINE void NAME(spread1)(const int n, const NAME(reg) *d, int s, NAME(reg) *z, int t)
{
    if (n == 6) {
        const NAME(reg) p = d[0] + C(A * A) * d[2 * s], q = C(A) * d[s] + C(A * A * A) * d[3 * s];
        const NAME(reg) f = d[0] + C(B * B) * d[2 * s], g = C(B) * d[s] + C(B * B * B) * d[3 * s];
        z[0] = d[0];
        z[t] = p + q;
        z[2 * t] = p - q;
        z[3 * t] = f + g;
        z[4 * t] = f - g;
        z[5 * t] = d[3 * s];
    } else if (n == 4) {
        z[0] = d[0];
        z[t] = d[0] + d[s];
        z[2 * t] = d[0] - d[s];
        z[3 * t] = d[s];
    } else
        z[0] = d[0];
}

ALWAYS_INLINE void NAME(gradient1)(const int n, const NAME(reg) *m, int s, NAME(reg) *g, int t)
{
    if (n == 6) {
        const NAME(reg) p = m[s] + m[2 * s], q = m[s] - m[2 * s];
        const NAME(reg) f = m[3 * s] + m[4 * s], h = m[3 * s] - m[4 * s];
        g[0] = C(G0) * m[0] + C(GA) * p + C(GB) * f;
        g[t] = C(GA * A) * q + C(GB * B) * h;
        g[2 * t] = C(GA * A * A) * p + C(GB * B * B) * f + m[5 * s];
    } else if (n == 4) {
        const NAME(reg) p = C(0.5) * (m[s] + m[2 * s]);
        g[0] = m[0] + p;
        g[t] = C(0.5) * (m[s] - m[2 * s]);
        g[2 * t] = p + m[3 * s];
    } else
        g[0] = m[0];
}

/* Both axes: first along the columns into `half`, then along each row, which is read and written at
 * once. (rows, cols) is 6x6, 4x4, 1x6 or 1x4. */
ALWAYS_INLINE void NAME(input_tile)(const int rows, const int cols, ptrdiff_t channels,
                                    const REAL *const *pixel, REAL *v, ptrdiff_t point, REAL *check)
{
    NAME(reg) zero = LOAD(check);
    for (ptrdiff_t c = 0; c < channels; c += VL) {
        NAME(reg) half[36], line[6];
        UNROLL for (int j = 0; j < cols; j++) {
            UNROLL for (int i = 0; i < rows; i++)
                line[i] = LOAD(pixel[i * cols + j] + c);
            NAME(input1)(rows, line, 1, half + j, cols);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            NAME(input1)(cols, half + i * cols, 1, line, 1);
            UNROLL for (int j = 0; j < cols; j++)
                STORE(v + (i * cols + j) * point + c, line[j]);
            /* The first and the last point of an axis see each of its elements. */
            if (i == 0 || i == rows - 1)
                zero += C(0) * line[0] + C(0) * line[cols - 1];
        }
    }
    STORE(check, zero);
}

ALWAYS_INLINE void NAME(output_tile)(const int rows, const int cols, int vectors, const REAL *m,
                                     ptrdiff_t point, const REAL *bias, REAL *const *pixel,
                                     REAL *check)
{
    const int height = rows == 1 ? 1 : rows - 2, width = cols - 2;
    NAME(reg) zero = LOAD(check);
    for (int c = 0; c < vectors * VL; c += VL) {
        NAME(reg) half[24], line[6];
        const NAME(reg) start = LOAD(bias + c);
        UNROLL for (int j = 0; j < cols; j++) {
            UNROLL for (int i = 0; i < rows; i++)
                line[i] = LOAD(m + (i * cols + j) * point + c);
            NAME(output1)(rows, line, 1, half + j, cols);
        }
        UNROLL for (int i = 0; i < height; i++) {
            NAME(reg) sum;
            NAME(output1)(cols, half + i * cols, 1, line, 1);
            UNROLL for (int j = 0; j < width; j++) {
                line[j] += start;
                STORE(pixel[i * width + j] + c, line[j]);
            }
            sum = line[0] + line[1];
            if (width == 4)
                sum += line[2] + line[3];
            zero += C(0) * sum;
        }
    }
    STORE(check, zero);
}

ALWAYS_INLINE void NAME(weights_tile)(const int rows, const int cols, int vectors, ptrdiff_t depth,
                                      const REAL *w, ptrdiff_t w_k, ptrdiff_t w_row,
                                      ptrdiff_t w_col, REAL *u, ptrdiff_t point, REAL *check)
{
    const int height = rows == 1 ? 1 : 3;
    NAME(reg) zero = LOAD(check);
    for (ptrdiff_t k = 0; k < depth; k++)
        for (int c = 0; c < vectors * VL; c += VL) {
            const REAL *taps = w + k * w_k + c;
            REAL *to = u + k * vectors * VL + c;
            NAME(reg) half[18], line[6];
            UNROLL for (int j = 0; j < 3; j++) {
                UNROLL for (int i = 0; i < height; i++)
                    line[i] = LOAD(taps + i * w_row + j * w_col);
                NAME(weights1)(rows, line, 1, half + j, 3);
            }
            UNROLL for (int i = 0; i < rows; i++) {
                NAME(weights1)(cols, half + 3 * i, 1, line, 1);
                UNROLL for (int j = 0; j < cols; j++)
                    STORE(to + (i * cols + j) * point, line[j]);
                /* The second point of an axis sees each of its taps. */
                if (i == (rows == 1 ? 0 : 1))
                    zero += C(0) * line[1];
            }
        }
    STORE(check, zero);
}

ALWAYS_INLINE void NAME(spread_tile)(const int rows, const int cols, ptrdiff_t channels,
                                     const REAL *const *pixel, REAL *z, ptrdiff_t point, REAL *check)
{
    const int height = rows == 1 ? 1 : rows - 2, width = cols - 2;
    NAME(reg) zero = LOAD(check);
    for (ptrdiff_t c = 0; c < channels; c += VL) {
        NAME(reg) half[24], line[6];
        UNROLL for (int j = 0; j < width; j++) {
            UNROLL for (int i = 0; i < height; i++)
                line[i] = LOAD(pixel[i * width + j] + c);
            NAME(spread1)(rows, line, 1, half + j, width);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            NAME(spread1)(cols, half + i * width, 1, line, 1);
            UNROLL for (int j = 0; j < cols; j++)
                STORE(z + (i * cols + j) * point + c, line[j]);
            /* The second point of an axis sees each of its elements. */
            if (i == (rows == 1 ? 0 : 1))
                zero += C(0) * line[1];
        }
    }
    STORE(check, zero);
}

ALWAYS_INLINE void NAME(gradient_tile)(const int rows, const int cols, int vectors, const REAL *s,
                                      ptrdiff_t point, REAL *taps, ptrdiff_t taps_row, REAL *check)
{
    const int height = rows == 1 ? 1 : 3;
    NAME(reg) zero = LOAD(check);
    for (int c = 0; c < vectors * VL; c += VL) {
        NAME(reg) half[18], line[6];
        UNROLL for (int j = 0; j < cols; j++) {
            UNROLL for (int i = 0; i < rows; i++)
                line[i] = LOAD(s + (i * cols + j) * point + c);
            NAME(gradient1)(rows, line, 1, half + j, cols);
        }
        UNROLL for (int i = 0; i < height; i++) {
            NAME(gradient1)(cols, half + i * cols, 1, line, 1);
            UNROLL for (int j = 0; j < 3; j++)
                STORE(taps + (3 * i + j) * taps_row + c, line[j]);
            zero += C(0) * line[0] + C(0) * line[1] + C(0) * line[2];
        }
    }
    STORE(check, zero);
}

#define BY_FORM(function, ...) \
    switch (form) { \
    case 0: function(6, 6, __VA_ARGS__); break; \
    case 1: function(4, 4, __VA_ARGS__); break; \
    case 2: function(1, 6, __VA_ARGS__); break; \
    default: function(1, 4, __VA_ARGS__); break; \
    }

static void NAME(input)(int form, ptrdiff_t channels, const REAL *const *pixel, REAL *v,
                        ptrdiff_t point, REAL *check)
{
    BY_FORM(NAME(input_tile), channels, pixel, v, point, check)
}

static void NAME(output)(int form, int vectors, const REAL *m, ptrdiff_t point, const REAL *bias,
                         REAL *const *pixel, REAL *check)
{
    BY_FORM(NAME(output_tile), vectors, m, point, bias, pixel, check)
}

static void NAME(weights)(int form, int vectors, ptrdiff_t depth, const REAL *w, ptrdiff_t w_k,
                          ptrdiff_t w_row, ptrdiff_t w_col, REAL *u, ptrdiff_t point, REAL *check)
{
    BY_FORM(NAME(weights_tile), vectors, depth, w, w_k, w_row, w_col, u, point, check)
}

static void NAME(spread)(int form, ptrdiff_t channels, const REAL *const *pixel, REAL *z,
                         ptrdiff_t point, REAL *check)
{
    BY_FORM(NAME(spread_tile), channels, pixel, z, point, check)
}

static void NAME(gradient)(int form, int vectors, const REAL *s, ptrdiff_t point, REAL *taps,
                          ptrdiff_t taps_row, REAL *check)
{
    BY_FORM(NAME(gradient_tile), vectors, s, point, taps, taps_row, check)
}
#undef BY_FORM
#undef A
#undef B
#undef G0
#undef GA
#undef GB
#undef C
