/* Moves between layouts: see ukernel.h. Included by ukernel_body.h. */
#ifdef HAS_SHUFFLE
typedef INTEGER NAME(mask) __attribute__((vector_size(VBYTES)));

/* Registers have banks of 16 bytes, and shuffles within banks are cheap. `square` transposes the BANK x
 * BANK elements in every bank of BANK registers by repeated interleaving ({first half, second half} ->
 * {pairwise interleaved}, log2(BANK) rounds); `exchange` swaps the banks of registers w apart. */
#define BANK ((int)(16 / sizeof(REAL)))
ALWAYS_INLINE void NAME(square)(NAME(reg) *v)
{
    NAME(reg) u[BANK];
    NAME(mask) low, high;
    UNROLL for (int i = 0; i < VL; i++) {
        low[i] = i / BANK * BANK + i % BANK / 2 + i % 2 * VL;
        high[i] = low[i] + BANK / 2;
    }
    UNROLL for (int width = 1; width < BANK; width *= 2) {
        UNROLL for (int i = 0; i < BANK / 2; i++) {
            u[2 * i] = __builtin_shuffle(v[i], v[i + BANK / 2], low);
            u[2 * i + 1] = __builtin_shuffle(v[i], v[i + BANK / 2], high);
        }
        UNROLL for (int i = 0; i < BANK; i++)
            v[i] = u[i];
    }
}

ALWAYS_INLINE void NAME(exchange)(NAME(reg) *v, const int w)
{
    NAME(mask) low, high;
    UNROLL for (int i = 0; i < VL; i++) {
        low[i] = i & w ? VL + i - w : i;
        high[i] = i & w ? VL + i : i + w;
    }
    UNROLL for (int i = 0; i < VL; i++)
        if (!(i & w)) {
            const NAME(reg) first = v[i];
            v[i] = __builtin_shuffle(first, v[i + w], low);
            v[i + w] = __builtin_shuffle(first, v[i + w], high);
        }
}

/* One VL x VL block. Of it only `rows` rows are read, and `cols` rows of the transposed block written,
 * a whole vector each. */
ALWAYS_INLINE void NAME(transpose_block)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src,
                                         ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    NAME(reg) v[VL];
    UNROLL for (int i = 0; i < VL; i++)
        v[i] = *(const NAME(vec) *)(src + (i < rows ? i : 0) * src_row);
    UNROLL for (int bank = 0; bank < VL; bank += BANK)
        NAME(square)(v + bank);
    if (VL > BANK)
        NAME(exchange)(v, BANK);
    if (VL > 2 * BANK)
        NAME(exchange)(v, 2 * BANK);
    UNROLL for (int i = 0; i < VL; i++)
        if (i < cols)
            *(NAME(vec) *)(dst + i * dst_row) = v[i];
}

/* A block of VL rows and at most BANK columns: each bank is filled from a row of its own. */
ALWAYS_INLINE void NAME(transpose_thin)(ptrdiff_t cols, const REAL *src, ptrdiff_t src_row, REAL *dst,
                                        ptrdiff_t dst_row)
{
    NAME(reg) v[BANK];
    UNROLL for (int i = 0; i < BANK; i++) {
        v[i] = *(const NAME(vec) *)(src + i * src_row);
        UNROLL for (int bank = BANK; bank < VL; bank += BANK) {
            const NAME(reg) other = *(const NAME(vec) *)(src + (i + bank) * src_row - bank);
            NAME(mask) only;
            UNROLL for (int lane = 0; lane < VL; lane++)
                only[lane] = lane / BANK * BANK == bank ? VL + lane : lane;
            v[i] = __builtin_shuffle(v[i], other, only);
        }
    }
    NAME(square)(v);
    UNROLL for (int i = 0; i < BANK; i++)
        if (i < cols)
            *(NAME(vec) *)(dst + i * dst_row) = v[i];
}
#endif

ALWAYS_INLINE void NAME(transpose_each)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src,
                                        ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    for (ptrdiff_t j = 0; j < cols; j++)
        for (ptrdiff_t i = 0; i < rows; i++)
            dst[j * dst_row + i] = src[i * src_row + j];
}

/* In blocks, of which the last in each direction lies over its neighbour. A matrix of fewer columns
 * than a vector has lanes is read beyond its rows' ends, but not beyond its own; one of fewer rows is
 * written beyond its rows' ends where the next overwrite that. */
static void NAME(transpose)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row,
                            REAL *dst, ptrdiff_t dst_row)
{
#ifdef HAS_SHUFFLE
    if (rows >= VL && cols >= VL) {
        for (ptrdiff_t i = 0; i < rows; i += VL) {
            const ptrdiff_t r = i + VL <= rows ? i : rows - VL;
            for (ptrdiff_t j = 0; j < cols; j += VL) {
                const ptrdiff_t c = j + VL <= cols ? j : cols - VL;
                NAME(transpose_block)(VL, VL, src + r * src_row + c, src_row,
                                      dst + c * dst_row + r, dst_row);
            }
        }
        return;
    }
    if (rows >= VL && src_row >= 0) {
        const ptrdiff_t end = (rows - 1) * src_row + cols;
        ptrdiff_t i = 0;
        if (cols <= BANK && src_row > 0)
            for (; i + VL <= rows && (i + VL - 1) * src_row + BANK <= end; i += VL)
                NAME(transpose_thin)(cols, src + i * src_row, src_row, dst + i, dst_row);
        while (i + VL <= rows && (i + VL - 1) * src_row + VL <= end) {
            NAME(transpose_block)(VL, cols, src + i * src_row, src_row, dst + i, dst_row);
            i += VL;
        }
        NAME(transpose_each)(rows - i, cols, src + i * src_row, src_row, dst + i, dst_row);
        return;
    }
    if (cols >= VL && dst_row == rows) {
        ptrdiff_t j = 0;
        while (j + VL <= cols && (j + VL - 1) * dst_row + VL <= cols * dst_row) {
            NAME(transpose_block)(rows, VL, src + j, src_row, dst + j * dst_row, dst_row);
            j += VL;
        }
        NAME(transpose_each)(rows, cols - j, src + j, src_row, dst + j * dst_row, dst_row);
        return;
    }
#endif
    NAME(transpose_each)(rows, cols, src, src_row, dst, dst_row);
}
#undef BANK

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

/* One row of `unzip`: a last pair of vectors that overlap their neighbours. */
ALWAYS_INLINE void NAME(unzip_row)(ptrdiff_t pairs, const REAL *src, REAL *even, REAL *odd)
{
    ptrdiff_t x = 0;
#ifdef HAS_SHUFFLE
    if (pairs >= VL) {
        NAME(mask) first, second;
        UNROLL for (int i = 0; i < VL; i++) {
            first[i] = 2 * i;
            second[i] = 2 * i + 1;
        }
        for (; x < pairs; x += VL) {
            const ptrdiff_t at = x + VL <= pairs ? x : pairs - VL;
            const NAME(reg) a = *(const NAME(vec) *)(src + 2 * at);
            const NAME(reg) b = *(const NAME(vec) *)(src + 2 * at + VL);
            *(NAME(vec) *)(even + at) = __builtin_shuffle(a, b, first);
            *(NAME(vec) *)(odd + at) = __builtin_shuffle(a, b, second);
        }
        return;
    }
#endif
    for (; x < pairs; x++) {
        even[x] = src[2 * x];
        odd[x] = src[2 * x + 1];
    }
}

static void NAME(unzip)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row, REAL *even,
                        REAL *odd, ptrdiff_t dst_row)
{
    for (ptrdiff_t y = 0; y < rows; y++, src += src_row, even += dst_row, odd += dst_row) {
        NAME(unzip_row)(cols / 2, src, even, odd);
        if (cols % 2)
            even[cols / 2] = src[cols - 1];
    }
}

/* One row of `move` that takes every second element. The second load begins an element early, so that
 * nothing behind the last element is read. */
ALWAYS_INLINE void NAME(halve_row)(ptrdiff_t cols, const REAL *src, REAL *dst)
{
    ptrdiff_t x = 0;
#ifdef HAS_SHUFFLE
    if (cols >= VL) {
        NAME(mask) every;
        UNROLL for (int i = 0; i < VL / 2; i++) {
            every[i] = 2 * i;
            every[VL / 2 + i] = VL + 2 * i + 1;
        }
        for (; x < cols; x += VL) {
            const ptrdiff_t at = x + VL <= cols ? x : cols - VL;
            const NAME(reg) a = *(const NAME(vec) *)(src + 2 * at);
            const NAME(reg) b = *(const NAME(vec) *)(src + 2 * at + VL - 1);
            *(NAME(vec) *)(dst + at) = __builtin_shuffle(a, b, every);
        }
        return;
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

ALWAYS_INLINE void NAME(zip_row)(ptrdiff_t pairs, const REAL *even, const REAL *odd, REAL *dst)
{
    ptrdiff_t x = 0;
#ifdef HAS_SHUFFLE
    if (pairs >= VL) {
        NAME(mask) low, high;
        UNROLL for (int i = 0; i < VL / 2; i++) {
            low[2 * i] = i;
            low[2 * i + 1] = VL + i;
            high[2 * i] = VL / 2 + i;
            high[2 * i + 1] = VL + VL / 2 + i;
        }
        for (; x < pairs; x += VL) {
            const ptrdiff_t at = x + VL <= pairs ? x : pairs - VL;
            const NAME(reg) a = *(const NAME(vec) *)(even + at);
            const NAME(reg) b = *(const NAME(vec) *)(odd + at);
            *(NAME(vec) *)(dst + 2 * at) = __builtin_shuffle(a, b, low);
            *(NAME(vec) *)(dst + 2 * at + VL) = __builtin_shuffle(a, b, high);
        }
        return;
    }
#endif
    for (; x < pairs; x++) {
        dst[2 * x] = even[x];
        dst[2 * x + 1] = odd[x];
    }
}

static void NAME(zip)(ptrdiff_t rows, ptrdiff_t cols, const REAL *even, const REAL *odd,
                      ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    for (ptrdiff_t y = 0; y < rows; y++, even += src_row, odd += src_row, dst += dst_row) {
        NAME(zip_row)(cols / 2, even, odd, dst);
        if (cols % 2)
            dst[cols - 1] = even[cols / 2];
    }
}
