/* Sums over a strip of pixels, one vector of channels each: see ukernel.h. Included by
 * ukernel_body.h.
 *
 * A pixel of the source is loaded once per row of the filter and serves every output that sees it.
 * taps, step and clipped are constants at every call, for the sake of registers. */
ALWAYS_INLINE void NAME(strip)(
    const int taps, const int step, const int clipped, int pixels, ptrdiff_t depth, const REAL *x,
    const ptrdiff_t *row, ptrdiff_t pixel, const REAL *filter, const ptrdiff_t *filter_row,
    ptrdiff_t lo, ptrdiff_t hi, const REAL *start, REAL *y, ptrdiff_t y_pixel)
{
    NAME(reg) acc[STRIP];
    UNROLL for (int j = 0; j < STRIP; j++)
        acc[j] = *(const NAME(vec) *)start;
    for (ptrdiff_t r = 0; r < depth; r++) {
        NAME(reg) weight[8];
        UNROLL for (int k = 0; k < taps; k++)
            weight[k] = *(const NAME(vec) *)(filter + filter_row[r] + k * VL);
        UNROLL for (int i = 0; i < (STRIP - 1) * step + taps; i++) {
            if (clipped && (i < lo || i >= hi))
                continue;
            const NAME(reg) seen = *(const NAME(vec) *)(x + row[r] + i * pixel);
            UNROLL for (int k = 0; k < taps; k++)
                if (i >= k && (i - k) % step == 0 && (i - k) / step < STRIP)
                    acc[(i - k) / step] += seen * weight[k];
        }
    }
    UNROLL for (int j = 0; j < STRIP; j++)
        if (!clipped || j < pixels)
            *(NAME(vec) *)(y + j * y_pixel) = acc[j];
}

#define STRIP_CASE(taps, step) \
    case taps * 2 + step: \
        if (pixels == STRIP && lo <= 0 && hi >= (STRIP - 1) * step + taps) \
            NAME(strip)(taps, step, 0, pixels, depth, x, row, pixel, filter, filter_row, lo, hi, \
                        start, y, y_pixel); \
        else \
            NAME(strip)(taps, step, 1, pixels, depth, x, row, pixel, filter, filter_row, lo, hi, \
                        start, y, y_pixel); \
        break;

static void NAME(slide)(int taps, int step, int pixels, ptrdiff_t depth, const REAL *x,
                        const ptrdiff_t *row, ptrdiff_t pixel, const REAL *filter,
                        const ptrdiff_t *filter_row, ptrdiff_t lo, ptrdiff_t hi,
                        const REAL *start, REAL *y, ptrdiff_t y_pixel)
{
    switch (taps * 2 + step) {
        STRIP_CASE(1, 1) STRIP_CASE(2, 1) STRIP_CASE(3, 1) STRIP_CASE(4, 1) STRIP_CASE(5, 1)
        STRIP_CASE(7, 1) STRIP_CASE(3, 2) STRIP_CASE(5, 2) STRIP_CASE(7, 2)
    }
}
#undef STRIP_CASE

/* The adjoint: `height` rows of the filter at once, so that their sums are enough to hide the latency
 * of an addition. With step 1 a window of dy slides along, with step 2 each output looks at its own
 * pixels. */
ALWAYS_INLINE void NAME(strip_gradient)(
    const int height, const int taps, const int step, ptrdiff_t pixels, const REAL *x,
    const ptrdiff_t *row, ptrdiff_t pixel, const REAL *dy, ptrdiff_t dy_pixel, ptrdiff_t lo,
    ptrdiff_t hi, REAL *dw, const ptrdiff_t *filter_row)
{
    NAME(reg) acc[3][8], window[8];
    UNROLL for (int r = 0; r < height; r++)
        UNROLL for (int k = 0; k < taps; k++)
            acc[r][k] = *(const NAME(vec) *)(dw + filter_row[r] + k * VL);
    if (step == 1) {
        UNROLL for (int k = 0; k < taps; k++)
            window[k] = (NAME(reg)){0};
        for (ptrdiff_t i = 0; i < hi; i++) {
            UNROLL for (int k = taps - 1; k > 0; k--)
                window[k] = window[k - 1];
            window[0] = (NAME(reg)){0};
            if (i < pixels)
                window[0] = *(const NAME(vec) *)(dy + i * dy_pixel);
            if (i < lo)
                continue;
            UNROLL for (int r = 0; r < height; r++) {
                const NAME(reg) seen = *(const NAME(vec) *)(x + row[r] + i * pixel);
                UNROLL for (int k = 0; k < taps; k++)
                    acc[r][k] += seen * window[k];
            }
        }
    } else {
        for (ptrdiff_t j = 0; j < pixels; j++) {
            const NAME(reg) d = *(const NAME(vec) *)(dy + j * dy_pixel);
            const ptrdiff_t first = j * step;
            UNROLL for (int k = 0; k < taps; k++) {
                if (first + k < lo || first + k >= hi)
                    continue;
                UNROLL for (int r = 0; r < height; r++)
                    acc[r][k] += *(const NAME(vec) *)(x + row[r] + (first + k) * pixel) * d;
            }
        }
    }
    UNROLL for (int r = 0; r < height; r++)
        UNROLL for (int k = 0; k < taps; k++)
            *(NAME(vec) *)(dw + filter_row[r] + k * VL) = acc[r][k];
}

#define GRADIENT_CASE(height, taps, step) \
    case (height * 8 + taps) * 2 + step: \
        NAME(strip_gradient)(height, taps, step, pixels, x, row, pixel, dy, dy_pixel, lo, hi, dw, \
                             filter_row); \
        break;

static void NAME(slide_gradient)(int height, int taps, int step, ptrdiff_t pixels, const REAL *x,
                                 const ptrdiff_t *row, ptrdiff_t pixel, const REAL *dy,
                                 ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi, REAL *dw,
                                 const ptrdiff_t *filter_row)
{
    switch ((height * 8 + taps) * 2 + step) {
        GRADIENT_CASE(1, 3, 1) GRADIENT_CASE(2, 3, 1) GRADIENT_CASE(3, 3, 1)
        GRADIENT_CASE(1, 5, 1) GRADIENT_CASE(2, 5, 1) GRADIENT_CASE(1, 7, 1)
        GRADIENT_CASE(1, 3, 2) GRADIENT_CASE(2, 3, 2) GRADIENT_CASE(3, 3, 2)
        GRADIENT_CASE(1, 5, 2) GRADIENT_CASE(2, 5, 2) GRADIENT_CASE(1, 7, 2)
    }
}
#undef GRADIENT_CASE
