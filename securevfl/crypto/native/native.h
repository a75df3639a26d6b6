/* What the three sources share: words, cells, and arithmetic modulo p without a branch. */
#ifndef SECUREVFL_NATIVE_H
#define SECUREVFL_NATIVE_H
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_VECTOR 1
#define AVX __attribute__((target("avx2,fma")))
#define AVX_INLINE static inline __attribute__((target("avx2,fma"), always_inline))
#endif
#define API __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum { N = 8192, LOG = 13, TRANSFORMS = 3, PRIMES = 3, SEED = 64, TILE = 8 };
typedef uint64_t u64;
typedef unsigned __int128 u128;

/* 8 bytes of a polynomial in NTT form: a residue, or on the vector path a centred one as a double. */
typedef union {
    u64 word;
    double real;
} cell;

INLINE u64 high(u64 a, u64 b) { return (u64)(((u128)a * b) >> 64); }
/* a*w modulo p, below 2p for any a; ws is Shoup's floor(2^64 w/p). */
INLINE u64 lazy(u64 a, u64 w, u64 ws, u64 p) { return a * w - high(a, ws) * p; }
INLINE u64 below(u64 a, u64 p) { return a - (p & -(u64)(a >= p)); }
INLINE u64 times(u64 a, u64 w, u64 ws, u64 p) { return below(lazy(a, w, ws, p), p); }
static inline u64 shoup(u64 w, u64 p) { return (u64)(((u128)w << 64) / p); }
static inline u64 power(u64 base, u64 exponent, u64 p) { /* of public numbers only */
    u64 found = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) found = (u64)((u128)found * base % p);
        base = (u64)((u128)base * base % p);
    }
    return found;
}

/* Scratch that held secrets. The barrier keeps a compiler from dropping the stores. */
static inline void forget(void *scratch, size_t bytes) {
    memset(scratch, 0, bytes);
    __asm__ __volatile__("" : : "r"(scratch) : "memory");
}
static inline void *scratch(size_t bytes) { return aligned_alloc(64, (bytes + 63) / 64 * 64); }

extern const u64 TRANSFORM[TRANSFORMS];

/* transforms.c; t is the number of a transform */
void of_words(int t, int vector, const u64 *in, cell *out); /* any words, times 1/N */
void of_integers(int t, int vector, const int32_t *in, cell *out);
/* Add up to TILE products of cells; the second factors lie `stride` apart and have 1 or 2 polynomials. */
void add_products(int t, int vector, int polys, cell *sums, const cell *plain, const cell *inputs,
                  size_t stride, int count);
void back(int t, int vector, cell *sums, u64 *out); /* one polynomial's sums to residues */

/* streams.c */
void expand(const uint8_t *seed, const u64 *moduli, int primes, int vector, u64 *out);
#endif
