// The functions of src/mma.cuh for the emulator: force-included after cuda_emu.h.
//
// Fragments are laid out as the PTX ISA says, each lane's registers are shown to the whole warp,
// and every lane computes its own elements of the product.

namespace emu {

// Registers of one lane: a fragment of A and one of B.
template <class R> struct Fragments {
  R a[4], b[2];
};

// What every lane of the warp holds; lanes meet here.
template <class R>
inline void gather_fragments(Fragments<R> (&all)[32], const R (&a)[4], const R *b) {
  const Fragments<R> mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  static_assert(sizeof mine <= sizeof warpbuf[0][0], "a lane's registers fit");
  memcpy(warpbuf[warp()][lane()], &mine, sizeof mine);
  sync_warp(-7);
  for (int l = 0; l < 32; l++) memcpy(&all[l], warpbuf[warp()][l], sizeof mine);
  sync_warp(-8);
}

// Add to d the products of a 16 x DEPTH and a DEPTH x 8 matrix, of which `a(all, row, k)` and
// `b(all, k, column)` find the elements.
template <int DEPTH, class A, class R, class FindA, class FindB>
inline void multiply_fragments(A (&d)[4], const Fragments<R> (&all)[32], FindA a, FindB b) {
  for (int e = 0; e < 4; e++) {
    const int row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
    for (int k = 0; k < DEPTH; k++) d[e] += a(all, row, k) * b(all, k, column);
  }
}

}  // namespace emu

inline void copy_async(void *to, const void *from, bool exists) {
  emu::cp_async(to, from, 16, exists);
}
inline void close_copies() { emu::cp_commit(); }
template <int LEFT> inline void wait_for_copies() { emu::cp_wait(LEFT); }

inline void load_matrices(unsigned (&into)[4], const void *line) { emu::ldmatrix_x4(into, line); }

inline void load_transposed(unsigned (&into)[4], const void *line) {
  if ((uintptr_t)line % 16) __builtin_trap();
  memcpy(emu::warpbuf[emu::warp()][emu::lane()], line, 16);
  emu::sync_warp(-9);
  for (int m = 0; m < 4; m++) {
    uint16_t halves[2];
    for (int i = 0; i < 2; i++) {
      const int from = m * 8 + emu::lane() % 4 * 2 + i;
      memcpy(&halves[i], emu::warpbuf[emu::warp()][from] + emu::lane() / 4 * 2, 2);
    }
    memcpy(&into[m], halves, 4);
  }
  emu::sync_warp(-10);
}

// m16n8k16 of half types
template <class T> inline void mma(T, float (&d)[4], const unsigned (&a)[4], const unsigned *b) {
  emu::Fragments<unsigned> all[32];
  emu::gather_fragments(all, a, b);
  auto half = [](unsigned two, int k) {
    T value;
    value.bits = (unsigned short)(two >> k % 2 * 16);
    return to_sum(value);
  };
  emu::multiply_fragments<16>(
      d, all,
      [=](auto &of, int row, int k) {
        return half(of[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k);
      },
      [=](auto &of, int k, int column) { return half(of[column * 4 + k % 8 / 2].b[k / 8], k); });
}

// m16n8k8 of tf32; the unit does not see the low 13 bits
inline void mma(float, float (&d)[4], const unsigned (&a)[4], const unsigned *b) {
  emu::Fragments<unsigned> all[32];
  emu::gather_fragments(all, a, b);
  auto seen = [](unsigned bits) { return __uint_as_float(bits & 0xffffe000u); };
  emu::multiply_fragments<8>(
      d, all,
      [=](auto &of, int row, int k) {
        return seen(of[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2]);
      },
      [=](auto &of, int k, int column) { return seen(of[column * 4 + k % 4].b[k / 4]); });
}

// four m8n8k4 of double
inline void mma(double, double (&d)[4], const double (&a)[4], const double *b) {
  emu::Fragments<double> all[32];
  emu::gather_fragments(all, a, b);
  emu::multiply_fragments<8>(
      d, all,
      [](auto &of, int row, int k) { return of[row % 8 * 4 + k % 4].a[row / 8 + k / 4 * 2]; },
      [](auto &of, int k, int column) { return of[column * 4 + k % 4].b[k / 4]; });
}

// To nearest, ties away from zero; infinities and NaN stay.
inline unsigned tf32_of(unsigned bits) {
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}
