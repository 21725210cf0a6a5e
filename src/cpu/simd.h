/* simd.h: registers of the vector kernels.  The *_simd.c files are compiled once for AVX2 (eight floats in a register,
 * 16 registers) and once for AVX-512 (16 floats, 32 registers); this header hides the difference.
 *
 * SIMD(op) is the intrinsic of that name at the register's width.  SIMD_NAME(name) is the name with the instruction set
 * behind it, for what the two compilations export.
 */
#ifndef PENSTOCK_CPU_SIMD_H
#define PENSTOCK_CPU_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define SIMD_INLINE static inline __attribute__((always_inline))
#define SIMD_UNROLL _Pragma("GCC unroll 16")

#if defined __AVX512F__
#define SIMD_ISA_NAME "avx512"
enum { SIMD_LANES = 16 };
typedef __m512  simd_f;
typedef __m512i simd_i;
typedef __mmask16 simd_first; /* the first so many lanes */
#define SIMD(op) _mm512_##op
#define SIMD_NAME(name) name##_avx512
#define SIMD_WORDS(value) { value, value, value, value, value, value, value, value, \
	                    value, value, value, value, value, value, value, value }
/* With 32 registers the compiler may keep what it has loaded. */
#define SIMD_FORGET(a, b) ((void)0)
#else
#define SIMD_ISA_NAME "avx2"
enum { SIMD_LANES = 8 };
typedef __m256  simd_f;
typedef __m256i simd_i;
typedef __m256i simd_first;
#define SIMD(op) _mm256_##op
#define SIMD_NAME(name) name##_avx2
#define SIMD_WORDS(value) { value, value, value, value, value, value, value, value }
/* The compiler no longer knows where two pointers point, so it loads anew. */
#define SIMD_FORGET(a, b) __asm__("" : "+r"(a), "+r"(b))
#endif

SIMD_INLINE simd_i simd_load_words(const void *at)
{
#if defined __AVX512F__
	return _mm512_loadu_si512(at);
#else
	return _mm256_loadu_si256((const __m256i *)at);
#endif
}

SIMD_INLINE simd_i simd_and(simd_i a, simd_i b)
{
#if defined __AVX512F__
	return _mm512_and_si512(a, b);
#else
	return _mm256_and_si256(a, b);
#endif
}

SIMD_INLINE simd_i simd_or(simd_i a, simd_i b)
{
#if defined __AVX512F__
	return _mm512_or_si512(a, b);
#else
	return _mm256_or_si256(a, b);
#endif
}

SIMD_INLINE simd_f simd_as_float(simd_i a)
{
#if defined __AVX512F__
	return _mm512_castsi512_ps(a);
#else
	return _mm256_castsi256_ps(a);
#endif
}

SIMD_INLINE simd_f simd_broadcast(const float *at) { return SIMD(set1_ps)(*at); }

/* SIMD_LANES halves, bfloats, or bytes, widened. */
SIMD_INLINE simd_f simd_halves(const uint8_t *at)
{
#if defined __AVX512F__
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
#else
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
#endif
}

SIMD_INLINE simd_f simd_bfloats(const uint8_t *at)
{
#if defined __AVX512F__
	return simd_as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16));
#else
	return simd_as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)at)), 16));
#endif
}

SIMD_INLINE __m128i simd_load_bytes(const uint8_t *at)
{
#if defined __AVX512F__
	return _mm_loadu_si128((const __m128i *)at);
#else
	return _mm_loadl_epi64((const __m128i *)at);
#endif
}

SIMD_INLINE simd_i simd_unsigned_words(const uint8_t *at) { return SIMD(cvtepu8_epi32)(simd_load_bytes(at)); }
SIMD_INLINE simd_f simd_unsigned_bytes(const uint8_t *at) { return SIMD(cvtepi32_ps)(simd_unsigned_words(at)); }

SIMD_INLINE simd_f simd_signed_bytes(const uint8_t *at)
{
	return SIMD(cvtepi32_ps)(SIMD(cvtepi8_epi32)(simd_load_bytes(at)));
}

/* The first COUNT lanes; all when COUNT is larger. */
SIMD_INLINE simd_first simd_first_lanes(uint32_t count)
{
#if defined __AVX512F__
	return count < 16 ? (simd_first)((1u << count) - 1) : (simd_first)0xffff;
#else
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(count < 8 ? (int)count : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
#endif
}

/* Lanes in FIRST from memory, the others 0; nothing else is read. */
SIMD_INLINE simd_f simd_load_first(const float *at, simd_first first)
{
#if defined __AVX512F__
	return _mm512_maskz_loadu_ps(first, at);
#else
	return _mm256_maskload_ps(at, first);
#endif
}

SIMD_INLINE void simd_store_first(float *at, simd_first first, simd_f value)
{
#if defined __AVX512F__
	_mm512_mask_storeu_ps(at, first, value);
#else
	_mm256_maskstore_ps(at, first, value);
#endif
}

/* Lanes in FIRST of VALUE, the others of OTHER. */
SIMD_INLINE simd_f simd_select_first(simd_first first, simd_f value, simd_f other)
{
#if defined __AVX512F__
	return _mm512_mask_blend_ps(first, other, value);
#else
	return _mm256_blendv_ps(other, value, _mm256_castsi256_ps(first));
#endif
}

/* VALUE where X ≥ BOUND or either is not a number, else 0. */
SIMD_INLINE simd_f simd_unless_less(simd_f x, simd_f bound, simd_f value)
{
#if defined __AVX512F__
	return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), value);
#else
	return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), value);
#endif
}

SIMD_INLINE simd_f simd_round(simd_f x)
{
#if defined __AVX512F__
	return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
	return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}

/* Whether all lanes are finite. */
SIMD_INLINE bool simd_all_finite(simd_f x)
{
#if defined __AVX512F__
	enum { NAN_OR_INFINITE = 0x99 }; /* both kinds of NaN, both infinities */
	return _mm512_fpclass_ps_mask(x, NAN_OR_INFINITE) == 0;
#else
	__m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
	return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ)) == 0xff;
#endif
}

/* ((0+4)+(2+6)) + ((1+5)+(3+7)) of eight lanes. */
SIMD_INLINE float simd_add_eight(__m256 v)
{
	__m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	__m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
	return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The same; of 16 lanes the upper eight are added to the lower ones first. */
SIMD_INLINE float simd_add_lanes(simd_f v)
{
#if defined __AVX512F__
	return simd_add_eight(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
#else
	return simd_add_eight(v);
#endif
}

/* NaN in any lane gives NaN or another lane's value: callers that care check finiteness apart. */
SIMD_INLINE float simd_max_lanes(simd_f v)
{
#if defined __AVX512F__
	__m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
	__m256 eight = v;
#endif
	__m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
	__m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
	return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#endif
