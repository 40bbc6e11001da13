/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* The ports of datagrams in fragments, which the first fragment has alone. */

#pragma once

#include "packet.h"

/* The identification of a fragment has the place of what only whole packets have: no program has
 * room for more on the stack. */
static __always_inline void set_fragment(struct packet *p, __be32 id)
{
	p->inner_l3 = id;
	p->inner_l4 = id >> 16;
}

static __always_inline __be32 fragment_of(const struct packet *p)
{
	return p->inner_l3 | (__be32)p->inner_l4 << 16;
}

static __always_inline void fragment4_key(struct frag4_key *key, const struct packet *p)
{
	key->daddr = p->flow.daddr.words[3];
	key->saddr = p->flow.saddr.words[3];
	key->id = fragment_of(p);
	key->protocol = p->flow.protocol;
	key->pad = 0;
}

static __always_inline void fragment6_key(struct frag6_key *key, const struct packet *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->daddr = p->flow.daddr;
	key->saddr = p->flow.saddr;
	key->id = fragment_of(p);
	key->protocol = p->flow.protocol;
}

/* Finds the ports of a fragment that has none. */
static __noinline void find_ports(struct packet *p)
{
	struct frag_value *known;

	if (p->flow.family == FAMILY_IPV4) {
		struct frag4_key key;

		fragment4_key(&key, p);
		known = bpf_map_lookup_elem(&sluice_frag4, &key);
	} else {
		struct frag6_key key;

		fragment6_key(&key, p);
		known = bpf_map_lookup_elem(&sluice_frag6, &key);
	}
	p->unknown_fragment = !known;
	if (known) {
		p->flow.sport = known->sport;
		p->flow.dport = known->dport;
	}
}

SUBPROGRAM int store_ports(const struct packet *p)
{
	struct frag_value ports;

	if (!p)
		return 0;
	ports.sport = p->flow.sport;
	ports.dport = p->flow.dport;
	if (p->flow.family == FAMILY_IPV4) {
		struct frag4_key key;

		fragment4_key(&key, p);
		bpf_map_update_elem(&sluice_frag4, &key, &ports, BPF_ANY);
	} else {
		struct frag6_key key;

		fragment6_key(&key, p);
		bpf_map_update_elem(&sluice_frag6, &key, &ports, BPF_ANY);
	}
	return 0;
}

/* Keeps the ports of a datagram's first fragment for the others. A program does so when it has
 * found that the packet is its sender's: what is forged must not give its ports to others. */
static __always_inline void keep_ports(const struct packet *p)
{
	if (p->shape == SHAPE_FIRST_FRAGMENT)
		store_ports(p);
}
