/* The last write of a result, `finish`: see ukernel.h. Included by ukernel_body.h.
 *
 * Exponentials are taken of what is not positive: n is rounded, 2^n made of its bits, and the rest of
 * at most ln(2)/2 goes through Taylor's series (W. J. Cody, W. Waite, "Software manual for the
 * elementary functions", 1980). Values below the smallest normal number become 0. Selections are by
 * bits, so that NaN, which compares false, stays. */
#if defined(__GNUC__) && !defined(CYCONV_SCALAR)
typedef INTEGER NAME(bits) __attribute__((vector_size(VBYTES)));
#define BITS(v) ((NAME(bits))(v))
#define NUMBERS(b) ((NAME(reg))(b))
#define WHERE(condition) ((NAME(bits))(condition))
#define UP(b, by) ((b) << (by))
#else
typedef INTEGER NAME(bits);
ALWAYS_INLINE INTEGER NAME(bits_of)(REAL v)
{
    const union { REAL number; INTEGER bits; } both = {v};
    return both.bits;
}
ALWAYS_INLINE REAL NAME(number_of)(INTEGER b)
{
    const union { INTEGER bits; REAL number; } both = {b};
    return both.number;
}
#define BITS(v) NAME(bits_of)(v)
#define NUMBERS(b) NAME(number_of)(b)
#define WHERE(condition) (-(INTEGER)(condition))
#define UP(b, by) ((INTEGER)((uint64_t)(b) << (by)))
#endif
#define SPLAT(number) ((REAL)(number) - (NAME(reg)){0})
#define SELECT(mask, a, b) NUMBERS(((mask) & BITS(a)) | (~(mask) & BITS(b)))
#define SINGLE (sizeof(REAL) == 4)

#ifndef CYCONV_EPILOGUE_TABLES
#define CYCONV_EPILOGUE_TABLES
/* (1 + 2h) exp(h*h) erfc(h) as a polynomial in (h - 3)/(h + 3), to 2e-9 for h < 9.4 and 3e-17 for
 * h < 27: interpolated at Chebyshev's points in 60 digits. The form is that of M. M. Shepherd,
 * J. G. Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", 1981. */
static const double cyconv_erfc_f32[] = {
    1.253008057, -0.1356211328, -0.04756223081, 0.1296462858, -0.1192737814, 0.06829493153,
    -0.02378243382, 0.002582342601, 0.001979671043, -0.0008170663862, -0.0002839216593};
static const double cyconv_erfc_f64[] = {
    1.25300805826972964, -0.135621106124580667, -0.0475622943534470652, 0.129645158702703487,
    -0.119273663415493939, 0.0683080273458753648, -0.0237705149148992488, 0.00252939178710756808,
    0.00188869031844541638, -0.000779832027314801448, -0.000105159525612161774,
    0.000125098092872802395, 4.9482622997916772e-6, -0.0000200964268695418159,
    -7.27804439667204802e-7, 3.46355257858086332e-6, 3.49204308283772522e-7,
    -6.04412488193441042e-7, -1.31161322944480081e-7, 9.14231993131847347e-8,
    3.2825163006176681e-8, -8.36121816088242744e-9, -4.15286538890134431e-9};
/* 1/2!, 1/3!, ... */
static const double cyconv_taylor[] = {
    1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
    1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
#endif

/* exp(high + low) = scale*(1 + q), for high <= 0 and a small low. */
ALWAYS_INLINE void NAME(exp_parts)(NAME(reg) high, NAME(reg) low, NAME(reg) *scale, NAME(reg) *q)
{
    const int terms = SINGLE ? 6 : 12;
    const NAME(reg) shift = SPLAT(SINGLE ? 0x1.8p23 : 0x1.8p52);
    const NAME(reg) shifted = high * (REAL)1.4426950408889634 + shift, n = shifted - shift;
    const NAME(reg) r = (high - n * (REAL)(SINGLE ? 0x1.62e4p-1 : 0x1.62e42feep-1)) +
                        (low - n * (REAL)(SINGLE ? 1.42860682030941723e-6 : 1.90821492927058770e-10));
    NAME(reg) sum = SPLAT(cyconv_taylor[terms - 1]);
    UNROLL for (int i = terms - 2; i >= 0; i--)
        sum = sum * r + (REAL)cyconv_taylor[i];
    *q = r + r * r * sum;
    *scale = NUMBERS(UP(BITS(shifted), SINGLE ? 23 : 52) + BITS(SPLAT(1)));
}

/* Where exp(high) is below the smallest normal number. */
ALWAYS_INLINE NAME(bits) NAME(vanishes)(NAME(reg) high)
{
    return WHERE(high < SPLAT(SINGLE ? -87.33654 : -708.39641));
}

ALWAYS_INLINE NAME(reg) NAME(exponential)(NAME(reg) high, NAME(reg) low)
{
    NAME(reg) scale, q;
    NAME(exp_parts)(high, low, &scale, &q);
    return NUMBERS(~NAME(vanishes)(high) & BITS(scale + scale * q));
}

ALWAYS_INLINE NAME(reg) NAME(sigmoid)(NAME(reg) size, NAME(bits) negative)
{
    const NAME(reg) one = SPLAT(1), e = NAME(exponential)(-size, SPLAT(0));
    return SELECT(negative, e, one) / (one + e);
}

/* sign(x) * (1 - exp(-2|x|)) / (1 + exp(-2|x|)), by exp - 1 so that nothing cancels. */
ALWAYS_INLINE NAME(reg) NAME(tanh)(NAME(reg) x, NAME(reg) size, NAME(bits) sign)
{
    const NAME(reg) high = (REAL)-2 * size, one = SPLAT(1);
    NAME(reg) scale, q, less;
    NAME(exp_parts)(high, SPLAT(0), &scale, &q);
    less = SELECT(NAME(vanishes)(high), -one, scale * q + (scale - one));
    return NUMBERS((~sign & BITS(less / (less + (REAL)2))) | (sign & BITS(x)));
}

/* Phi(-size), of the normal distribution: erfc(h)/2, h = size/sqrt(2). The square in the exponent is
 * taken in two parts, of which the first is exact. Beyond 40 it is 0. */
ALWAYS_INLINE NAME(reg) NAME(tail)(NAME(reg) size)
{
    const int degree = SINGLE ? 10 : 22;
    const double *const c = SINGLE ? cyconv_erfc_f32 : cyconv_erfc_f64;
    const NAME(bits) kept = (NAME(bits)){0} - ((INTEGER)1 << (SINGLE ? 12 : 27));
    NAME(reg) near, h, u, e, sum = SPLAT(c[degree]);
    size = SELECT(WHERE(size > SPLAT(40)), SPLAT(40), size);
    near = NUMBERS(kept & BITS(size));
    h = size * (REAL)0.70710678118654752;
    u = (h - (REAL)3) / (h + (REAL)3);
    e = NAME(exponential)((REAL)-0.5 * near * near, (REAL)-0.5 * (size - near) * (size + near));
    UNROLL for (int i = degree - 1; i >= 0; i--)
        sum = sum * u + (REAL)c[i];
    return (REAL)0.5 * e * sum / ((REAL)2 * h + (REAL)1);
}

/* 0 below 0, `most` above that. */
ALWAYS_INLINE NAME(reg) NAME(clipped)(NAME(reg) x, REAL most)
{
    x = NUMBERS(~WHERE(x <= SPLAT(0)) & BITS(x));
    return SELECT(WHERE(x > SPLAT(most)), SPLAT(most), x);
}

ALWAYS_INLINE NAME(reg) NAME(activated)(const int activation, REAL alpha, NAME(reg) x)
{
    const NAME(bits) sign = BITS(SPLAT(-0.0)), negative = WHERE(x < SPLAT(0));
    const NAME(reg) size = NUMBERS(~sign & BITS(x));
    switch (activation) {
    case CYCONV_RELU: return NUMBERS(~WHERE(x <= SPLAT(0)) & BITS(x));
    case CYCONV_RELU6: return NAME(clipped)(x, 6);
    case CYCONV_LEAKY_RELU: return SELECT(negative, alpha * x, x);
    case CYCONV_HARDSIGMOID: return NAME(clipped)(alpha * x + (REAL)0.5, 1);
    case CYCONV_HARDSWISH: return x * (NAME(clipped)(x + (REAL)3, 6) * (REAL)(1.0 / 6));
    case CYCONV_SIGMOID: return NAME(sigmoid)(size, negative);
    case CYCONV_SILU: return x * NAME(sigmoid)(size, negative);
    case CYCONV_TANH: return NAME(tanh)(x, size, sign);
    case CYCONV_GELU: {
        const NAME(reg) tail = NAME(tail)(size);
        return x * SELECT(negative, tail, SPLAT(1) - tail);
    }
    default: return x;
    }
}

/* One kind of activation, a constant at every call. A rest, and elements that are apart, go through
 * a vector of their own. */
ALWAYS_INLINE void NAME(finish_rows)(const int activation, REAL alpha, ptrdiff_t rows,
                                     ptrdiff_t cols, REAL *y, ptrdiff_t row, ptrdiff_t step,
                                     const REAL *residual)
{
    for (ptrdiff_t i = 0; i < rows; i++, y += row) {
        ptrdiff_t j = 0;
        if (step == 1)
            for (; j + VL <= cols; j += VL) {
                NAME(reg) v = *(const NAME(vec) *)(y + j);
                if (residual)
                    v += *(const NAME(vec) *)(residual + j);
                *(NAME(vec) *)(y + j) = NAME(activated)(activation, alpha, v);
            }
        for (; j < cols; j += VL) {
            const int count = (int)(cols - j < VL ? cols - j : VL);
            REAL some[VL] = {0};
            for (int k = 0; k < count; k++) {
                some[k] = y[(j + k) * step];
                if (residual)
                    some[k] += residual[(j + k) * step];
            }
            *(NAME(vec) *)some = NAME(activated)(activation, alpha, *(const NAME(vec) *)some);
            for (int k = 0; k < count; k++)
                y[(j + k) * step] = some[k];
        }
        if (residual)
            residual += row;
    }
}

#define FINISH_CASE(activation) \
    case activation: \
        NAME(finish_rows)(activation, alpha, rows, cols, y, row, step, residual); \
        break;

static void NAME(finish)(int activation, REAL alpha, ptrdiff_t rows, ptrdiff_t cols, REAL *y,
                         ptrdiff_t row, ptrdiff_t step, const REAL *residual)
{
    switch (activation) {
        FINISH_CASE(CYCONV_IDENTITY) FINISH_CASE(CYCONV_RELU) FINISH_CASE(CYCONV_RELU6)
        FINISH_CASE(CYCONV_LEAKY_RELU) FINISH_CASE(CYCONV_HARDSIGMOID)
        FINISH_CASE(CYCONV_HARDSWISH) FINISH_CASE(CYCONV_SIGMOID) FINISH_CASE(CYCONV_SILU)
        FINISH_CASE(CYCONV_TANH) FINISH_CASE(CYCONV_GELU)
    }
}
#undef FINISH_CASE
#undef BITS
#undef NUMBERS
#undef WHERE
#undef UP
#undef SPLAT
#undef SELECT
#undef SINGLE
