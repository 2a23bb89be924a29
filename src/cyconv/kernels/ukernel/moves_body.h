/* Moves between layouts: see ukernel.h. Included by ukernel_body.h. */
#ifdef HAS_SHUFFLE
typedef INTEGER NAME(mask) __attribute__((vector_size(VBYTES)));

/* One VL x VL block by repeated interleaving: after log2(VL) rounds of {first half, second half}
 * -> {pairwise interleaved}, rows have become columns. */
ALWAYS_INLINE void NAME(transpose_block)(const REAL *src, ptrdiff_t src_row, REAL *dst,
                                         ptrdiff_t dst_row)
{
    NAME(reg) v[VL], u[VL];
    NAME(mask) low, high;
    UNROLL for (int i = 0; i < VL / 2; i++) {
        low[2 * i] = i;
        low[2 * i + 1] = VL + i;
        high[2 * i] = VL / 2 + i;
        high[2 * i + 1] = VL + VL / 2 + i;
    }
    UNROLL for (int i = 0; i < VL; i++)
        v[i] = *(const NAME(vec) *)(src + i * src_row);
    UNROLL for (int width = 1; width < VL; width *= 2) {
        UNROLL for (int i = 0; i < VL / 2; i++) {
            u[2 * i] = __builtin_shuffle(v[i], v[i + VL / 2], low);
            u[2 * i + 1] = __builtin_shuffle(v[i], v[i + VL / 2], high);
        }
        UNROLL for (int i = 0; i < VL; i++)
            v[i] = u[i];
    }
    UNROLL for (int i = 0; i < VL; i++)
        *(NAME(vec) *)(dst + i * dst_row) = v[i];
}
#else
ALWAYS_INLINE void NAME(transpose_block)(const REAL *src, ptrdiff_t src_row, REAL *dst,
                                         ptrdiff_t dst_row)
{
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < VL; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}
#endif

static void NAME(transpose)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row,
                            REAL *dst, ptrdiff_t dst_row)
{
    const ptrdiff_t full_rows = rows - rows % VL, full_cols = cols - cols % VL;
    for (ptrdiff_t i = 0; i < full_rows; i += VL) {
        for (ptrdiff_t j = 0; j < full_cols; j += VL)
            NAME(transpose_block)(src + i * src_row + j, src_row, dst + j * dst_row + i, dst_row);
        for (ptrdiff_t j = full_cols; j < cols; j++)
            for (int r = 0; r < VL; r++)
                dst[j * dst_row + i + r] = src[(i + r) * src_row + j];
    }
    for (ptrdiff_t i = full_rows; i < rows; i++)
        for (ptrdiff_t j = 0; j < cols; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}

static void NAME(collect)(ptrdiff_t rows, int nv, const REAL *src, ptrdiff_t src_row, REAL *dst)
{
    if (nv == 2) {
        for (ptrdiff_t i = 0; i < rows; i++, src += src_row, dst += 2 * VL) {
            *(NAME(vec) *)dst = *(const NAME(vec) *)src;
            *(NAME(vec) *)(dst + VL) = *(const NAME(vec) *)(src + VL);
        }
    } else {
        for (ptrdiff_t i = 0; i < rows; i++, src += src_row, dst += VL)
            *(NAME(vec) *)dst = *(const NAME(vec) *)src;
    }
}

/* One row of `move` where both sides are contiguous: a last vector that overlaps its neighbour. */
ALWAYS_INLINE void NAME(move_row)(ptrdiff_t cols, const REAL *src, REAL *dst)
{
    ptrdiff_t x = 0;
    if (cols < VL) {
        for (; x < cols; x++)
            dst[x] = src[x];
        return;
    }
    for (; x + VL < cols; x += VL)
        *(NAME(vec) *)(dst + x) = *(const NAME(vec) *)(src + x);
    x = cols - VL;
    *(NAME(vec) *)(dst + x) = *(const NAME(vec) *)(src + x);
}

/* One row of `move` that takes every second element. */
ALWAYS_INLINE void NAME(halve_row)(ptrdiff_t cols, const REAL *src, REAL *dst)
{
    ptrdiff_t x = 0;
#ifdef HAS_SHUFFLE
    NAME(mask) even;
    UNROLL for (int i = 0; i < VL; i++)
        even[i] = 2 * i;
    for (; x + VL < cols; x += VL) {
        const NAME(reg) a = *(const NAME(vec) *)(src + 2 * x);
        const NAME(reg) b = *(const NAME(vec) *)(src + 2 * x + VL);
        *(NAME(vec) *)(dst + x) = __builtin_shuffle(a, b, even);
    }
#endif
    for (; x < cols; x++)
        dst[x] = src[2 * x];
}

static void NAME(move)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row,
                       ptrdiff_t src_step, REAL *dst, ptrdiff_t dst_row, ptrdiff_t dst_step)
{
    for (ptrdiff_t y = 0; y < rows; y++, src += src_row, dst += dst_row) {
        if (src_step == 1 && dst_step == 1)
            NAME(move_row)(cols, src, dst);
        else if (src_step == 2 && dst_step == 1)
            NAME(halve_row)(cols, src, dst);
        else
            for (ptrdiff_t x = 0; x < cols; x++)
                dst[x * dst_step] = src[x * src_step];
    }
}

static void NAME(zip)(ptrdiff_t rows, ptrdiff_t cols, const REAL *even, const REAL *odd,
                      ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    for (ptrdiff_t y = 0; y < rows; y++, even += src_row, odd += src_row, dst += dst_row) {
        ptrdiff_t x = 0;
#ifdef HAS_SHUFFLE
        NAME(mask) low, high;
        UNROLL for (int i = 0; i < VL / 2; i++) {
            low[2 * i] = i;
            low[2 * i + 1] = VL + i;
            high[2 * i] = VL / 2 + i;
            high[2 * i + 1] = VL + VL / 2 + i;
        }
        for (; 2 * (x + VL) <= cols; x += VL) {
            const NAME(reg) a = *(const NAME(vec) *)(even + x);
            const NAME(reg) b = *(const NAME(vec) *)(odd + x);
            *(NAME(vec) *)(dst + 2 * x) = __builtin_shuffle(a, b, low);
            *(NAME(vec) *)(dst + 2 * x + VL) = __builtin_shuffle(a, b, high);
        }
#endif
        for (; 2 * x < cols; x++) {
            dst[2 * x] = even[x];
            if (2 * x + 1 < cols)
                dst[2 * x + 1] = odd[x];
        }
    }
}
