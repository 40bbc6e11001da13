/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF"), for messages that
 * are a whole number of words of 8 bytes. */

#pragma once

#include "layout.h"

struct siphash {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 siphash_rotate(__u64 x, __u32 bits)
{
	return x << bits | x >> (64 - bits);
}

static __always_inline void siphash_round(struct siphash *s)
{
	s->v0 += s->v1;
	s->v1 = siphash_rotate(s->v1, 13) ^ s->v0;
	s->v0 = siphash_rotate(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = siphash_rotate(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = siphash_rotate(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = siphash_rotate(s->v1, 17) ^ s->v2;
	s->v2 = siphash_rotate(s->v2, 32);
}

static __always_inline void siphash_begin(struct siphash *s, const struct overlay_key *key)
{
	s->v0 = key->halves[0] ^ 0x736f6d6570736575ULL;
	s->v1 = key->halves[1] ^ 0x646f72616e646f6dULL;
	s->v2 = key->halves[0] ^ 0x6c7967656e657261ULL;
	s->v3 = key->halves[1] ^ 0x7465646279746573ULL;
}

static __always_inline void siphash_add(struct siphash *s, __u64 word)
{
	s->v3 ^= word;
	siphash_round(s);
	siphash_round(s);
	s->v0 ^= word;
}

/* bytes is the length of the message. */
static __always_inline __u64 siphash_end(struct siphash *s, __u64 bytes)
{
	siphash_add(s, bytes << 56);
	s->v2 ^= 0xff;
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	siphash_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
