// What CUDA C++ without headers has no word for: conversions of halves, and shared memory by name.
//
// NVRTC compiles these sources with no include path, so cuda_fp16.h is out of reach. The emulator
// of the tests defines CYCONV_EMULATED and brings functions of the same names.
#ifndef CYCONV_EMULATED

// One object of shared memory, static (at most 48 KiB) or of the size given at launch.
#define CYCONV_SHARED(Type, name) __shared__ Type name
#define CYCONV_DYNAMIC(Type, name)                                \
  extern __shared__ __align__(128) unsigned char cyconv_bytes[]; \
  Type &name = *reinterpret_cast<Type *>(cyconv_bytes)

static __device__ __forceinline__ float float_of_half_bits(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Round to nearest, ties to even.
static __device__ __forceinline__ unsigned short half_bits_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

#endif
