// Instructions of tensor cores and of the copies that feed them (PTX ISA, compute capability 8.0).
//
// The emulator of the tests defines CYCONV_EMULATED and brings functions of the same names.
//
// Fragments. A lane of a warp is 4 g + t with t < 4. `mma` adds a product of 16 rows and 8 columns
// to d[4]: rows g and g + 8, columns 2 t and 2 t + 1, in the order (g, 2t), (g, 2t+1), (g+8, 2t),
// (g+8, 2t+1). A fragment has four registers, of rows g, g + 8, g, g + 8, the second pair at later
// depths than the first; a fragment of B has two, of column g. The depths of a register are
//     half types   2 t, 2 t + 1          and 8 more in the second pair; depth 16
//     tf32         t                     and 4 more;                    depth 8
//     double       whatever A and B have in common in both pairs;       depth 8
#ifndef CYCONV_EMULATED

static __device__ __forceinline__ unsigned shared_address(const void *pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Start to copy 16 bytes from global to shared memory; zeros instead if nothing is there.
static __device__ __forceinline__ void copy_async(void *to, const void *from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
static __device__ __forceinline__ void close_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Wait until at most LEFT groups of this thread's copies are under way.
template <int LEFT> static __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Load four matrices of 8 lines of 16 bytes; lane l says where line l % 8 of matrix l / 8 is.
// Register m gets, of matrix m, line g, the 4 bytes t.
static __device__ __forceinline__ void load_matrices(unsigned (&into)[4], const void *line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(line))
               : "memory");
}
// The same with each matrix of 8 x 8 halves transposed: its lines 2 t and 2 t + 1, halves g.
static __device__ __forceinline__ void load_transposed(unsigned (&into)[4], const void *line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
               : "r"(shared_address(line))
               : "memory");
}

#define CYCONV_MMA(instruction)                                                           \
  asm volatile(instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"      \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

static __device__ __forceinline__ void mma(half_t, float (&d)[4], const unsigned (&a)[4],
                                           const unsigned *b) {
  CYCONV_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
}
static __device__ __forceinline__ void mma(bfloat16_t, float (&d)[4], const unsigned (&a)[4],
                                           const unsigned *b) {
  CYCONV_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
}
static __device__ __forceinline__ void mma(float, float (&d)[4], const unsigned (&a)[4],
                                           const unsigned *b) {
  CYCONV_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef CYCONV_MMA

static __device__ __forceinline__ void mma_8x8(double &d0, double &d1, double a, double b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
               : "+d"(d0), "+d"(d1)
               : "d"(a), "d"(b));
}
static __device__ __forceinline__ void mma(double, double (&d)[4], const double (&a)[4],
                                           const double *b) {
  mma_8x8(d[0], d[1], a[0], b[0]);
  mma_8x8(d[2], d[3], a[1], b[0]);
  mma_8x8(d[0], d[1], a[2], b[1]);
  mma_8x8(d[2], d[3], a[3], b[1]);
}

// Round the bits of a float to the 10 bits of tf32's mantissa, to nearest.
static __device__ __forceinline__ unsigned tf32_of(unsigned bits) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

#endif
