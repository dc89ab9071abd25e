/* Arithmetic on sizes as Python means it: floor division, and no silent overflow.
 *
 * A result that does not fit into 64 bits, or does not exist, sets *overflow; the caller then
 * refuses the call instead of launching with the number.
 */
#ifndef OPFORGE_ARITHMETIC_INCLUDED
#define OPFORGE_ARITHMETIC_INCLUDED

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline int64_t of_add(int64_t a, int64_t b, int *overflow)
{
    int64_t sum = 0;
    *overflow |= __builtin_add_overflow(a, b, &sum);
    return sum;
}

static inline int64_t of_mul(int64_t a, int64_t b, int *overflow)
{
    int64_t product = 0;
    *overflow |= __builtin_mul_overflow(a, b, &product);
    return product;
}

static inline int64_t of_neg(int64_t a, int *overflow)
{
    return of_mul(a, -1, overflow);
}

static inline int64_t of_abs(int64_t a, int *overflow)
{
    return a < 0 ? of_neg(a, overflow) : a;
}

static inline int64_t of_floordiv(int64_t a, int64_t b, int *overflow)
{
    int64_t quotient;
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        *overflow = 1;
        return 0;
    }
    quotient = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

static inline int64_t of_mod(int64_t a, int64_t b, int *overflow)
{
    int64_t rest;
    if (b == 0) {
        *overflow = 1;
        return 0;
    }
    if (b == -1) {
        return 0;
    }
    rest = a % b;
    return (rest != 0 && (rest < 0) != (b < 0)) ? rest + b : rest;
}

static inline int64_t of_pow(int64_t base, int64_t exponent, int *overflow)
{
    int64_t power = 1;
    if (exponent < 0) {
        *overflow = 1;
        return 0;
    }
    while (exponent > 0) {
        if (exponent & 1) {
            power = of_mul(power, base, overflow);
        }
        exponent >>= 1;
        if (exponent > 0) {
            base = of_mul(base, base, overflow);
        }
    }
    return power;
}

static inline int64_t of_shl(int64_t a, int64_t by, int *overflow)
{
    if (a == 0 && by >= 0) {
        return 0;
    }
    if (by < 0 || by > 62) {
        *overflow = 1;
        return 0;
    }
    return of_mul(a, (int64_t)1 << by, overflow);
}

static inline int64_t of_shr(int64_t a, int64_t by, int *overflow)
{
    if (by < 0) {
        *overflow = 1;
        return 0;
    }
    return by > 62 ? (a < 0 ? -1 : 0) : of_floordiv(a, (int64_t)1 << by, overflow);
}

static inline int64_t of_min(int64_t a, int64_t b)
{
    return b < a ? b : a;
}

static inline int64_t of_max(int64_t a, int64_t b)
{
    return b > a ? b : a;
}

static inline double of_min_float(double a, double b)
{
    return b < a ? b : a;
}

static inline double of_max_float(double a, double b)
{
    return b > a ? b : a;
}

static inline double of_mod_float(double a, double b)
{
    const double rest = fmod(a, b);
    return (rest != 0 && (rest < 0) != (b < 0)) ? rest + b : rest;
}

static inline double of_floordiv_float(double a, double b)
{
    return rint((a - of_mod_float(a, b)) / b);
}

/* Of a double that is a whole number already. */
static inline int64_t of_int(double a, int *overflow)
{
    if (!(a >= -9223372036854775808.0 && a < 9223372036854775808.0)) {
        *overflow = 1;
        return 0;
    }
    return (int64_t)a;
}

static inline int64_t of_float_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
