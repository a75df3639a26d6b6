/* Under valgrind's memcheck: features, a matrix, masks, noise, a key, the words of samples and
 * plaintexts are undefined memory, so that every branch and every address that depends on them is
 * reported, and so is memory that is freed before they are erased. "leak" and "keep" add one of
 * each, as a control. */
#include <malloc.h>
#include <stdio.h>
#include <valgrind/memcheck.h>

#include "native.h"

void svfl_start(void);
void *svfl_new(int, int, const u64 *, int, u64, int);
void svfl_cells(const void *, const u64 *, cell *);
int svfl_multiply(const void *, const int32_t *, int64_t, int64_t, int64_t, int64_t, const cell *,
                  int64_t, cell *);
int svfl_reply(const void *, cell *, const int32_t *, const u64 *, const int64_t *, int64_t,
               const int *, uint8_t *);
int svfl_add(const void *, const int64_t *, int64_t, const cell *, cell *);
void svfl_ternary(const u64 *, int64_t, int32_t *);
void svfl_noise(const u64 *, int64_t, int32_t *);
void svfl_key(const void *, const int32_t *, cell *);
int svfl_zero(const void *, const cell *, const uint8_t *, const int32_t *, u64 *);
int svfl_open(const void *, const cell *, const uint8_t *, const int *, const int64_t *, int64_t, u64 *);
void svfl_rounded(const void *, const u64 *, int64_t, u64 *);
int svfl_of_slots(int, const u64 *, const int64_t *, u64 *);
int svfl_to_slots(int, const u64 *, const int64_t *, u64 *);
void svfl_combined(const u64 *, int, int64_t, const u64 *, u64, u64, u64 *);
int svfl_encode(const double *, int64_t, int64_t, const double *, const double *, double, int64_t,
                int32_t *);

/* In place of the sources' free. */
void __real_free(void *);
void __wrap_free(void *memory) {
    if (VALGRIND_CHECK_MEM_IS_DEFINED(memory, malloc_usable_size(memory))) puts("kept");
    __real_free(memory);
}

enum { K = 3, COUNT = 64, ROWS = 3, INNER = 1000, CHUNK = 500, COLUMNS = 17 };
static u64 words[2 * K * N], masks[K * COUNT], limbs[2 * COUNT];
static int32_t matrix[ROWS * INNER], noise[2 * N], secret[N];
static int64_t polynomials[2 * N], places[N];
static double features[COUNT * COLUMNS], shift[COLUMNS], scale[COLUMNS];
static int32_t encoded[COLUMNS * COUNT];
static uint8_t reply[K * 8 * (N + COUNT)], seed[SEED];
static u64 found[K * N], shares[N];

int main(int count, char **arguments) {
    const u64 primes[K] = {1152921504606683137, 72057594037616641, 4503599627289601}, factors[2] = {5, 7};
    const int bits[K] = {60, 56, 52};
    int vector = arguments[1][0] - '0', transforms = arguments[2][0] - '0', kept = arguments[3][0] - '0';
    size_t input = (size_t)K * transforms * 2 * N;
    cell *inputs = scratch(16 * input), *sums = scratch(16 * input);
    int64_t positions[COUNT];
    svfl_start();
    void *engine = svfl_new(K, kept, primes, transforms, 0, vector);
    void *owner = svfl_new(K, K, primes, 2, (u64)1 << 47, vector);
    cell *key = scratch(8 * 2 * N);
    uint8_t *sent = calloc(1, sizeof reply);
    memset(sums, 0, 16 * input);
    for (int i = 0; i < COUNT; i++) positions[i] = 100 * i;
    for (int i = 0; i < 2 * K * N; i++) words[i] = i * 0x9e3779b97f4a7c15u % primes[K - 1];
    for (int c = 0; c < 2; c++) svfl_cells(engine, words, inputs + c * input);
    for (int j = 0; j < N; j++) places[j] = N - 1 - j;
    sent[0] = 1;
    for (int j = 0; j < COLUMNS; j++) scale[j] = 1;
    VALGRIND_MAKE_MEM_UNDEFINED(features, sizeof features);
    VALGRIND_MAKE_MEM_UNDEFINED(matrix, sizeof matrix);
    VALGRIND_MAKE_MEM_UNDEFINED(polynomials, sizeof polynomials);
    VALGRIND_MAKE_MEM_UNDEFINED(masks, sizeof masks);
    VALGRIND_MAKE_MEM_UNDEFINED(words, sizeof words);
    VALGRIND_MAKE_MEM_UNDEFINED(limbs, sizeof limbs);
    svfl_ternary(words, N, secret);
    svfl_noise(words, 2 * N, noise);
    svfl_key(owner, secret, key);
    int failed = svfl_multiply(engine, matrix, ROWS, INNER, CHUNK, 2, inputs, 1, sums) |
                 svfl_add(engine, polynomials, 2, inputs, sums) |
                 svfl_reply(engine, sums, noise, masks, positions, COUNT, bits, reply) |
                 svfl_zero(owner, key, seed, noise, found) |
                 svfl_open(owner, key, sent, bits, positions, COUNT, shares) |
                 svfl_of_slots(vector, words, places, shares) | svfl_to_slots(vector, words, places, shares);
    svfl_rounded(owner, words, N, shares);
    int beyond = svfl_encode(features, COUNT, COLUMNS, shift, scale, 4096, COUNT, encoded);
    svfl_combined(limbs, 2, COUNT, factors, 3, primes[0], words);
    int control = count > 4 ? arguments[4][0] : 0;
    if (control == 'l' && (reply[0] || words[0] > 5 || beyond)) puts("leaked");
    if (control == 'k') svfl_ternary(words, 8, (int32_t *)sent), free(sent);
    return failed;
}
