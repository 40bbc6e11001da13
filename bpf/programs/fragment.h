/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Ports of datagrams that come in fragments: only the first one has them. */

#pragma once

#include "packet.h"

static __always_inline void frag4_key(struct frag4_key *key, const struct packet *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->daddr = p->flow.daddr.words[3];
	key->saddr = p->flow.saddr.words[3];
	key->id = p->fragment_id;
	key->protocol = p->flow.protocol;
}

static __always_inline void frag6_key(struct frag6_key *key, const struct packet *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->daddr = p->flow.daddr;
	key->saddr = p->flow.saddr;
	key->id = p->fragment_id;
	key->protocol = p->flow.protocol;
}

SUBPROGRAM int store_ports(const struct packet *p)
{
	struct frag_value ports;
	union {
		struct frag4_key v4;
		struct frag6_key v6;
	} key;

	if (!p)
		return 0;
	ports.sport = p->flow.sport;
	ports.dport = p->flow.dport;
	if (p->flow.family == FAMILY_IPV4) {
		frag4_key(&key.v4, p);
		return bpf_map_update_elem(&sluice_frag4, &key, &ports, BPF_ANY);
	}
	frag6_key(&key.v6, p);
	return bpf_map_update_elem(&sluice_frag6, &key, &ports, BPF_ANY);
}

/* Keeps the ports of a datagram's first fragment for the others. Programs do that when
 * they know where it comes from: what is forged must not give its ports to others. */
static __always_inline void keep_ports(const struct packet *p)
{
	if (p->shape == SHAPE_FIRST_FRAGMENT)
		store_ports(p);
}

/* Finds the ports of a fragment that has none. */
static __noinline void find_ports(struct packet *p)
{
	const struct frag_value *known;
	union {
		struct frag4_key v4;
		struct frag6_key v6;
	} key;

	if (p->flow.family == FAMILY_IPV4) {
		frag4_key(&key.v4, p);
		known = bpf_map_lookup_elem(&sluice_frag4, &key);
	} else {
		frag6_key(&key.v6, p);
		known = bpf_map_lookup_elem(&sluice_frag6, &key);
	}
	p->unknown_fragment = !known;
	if (known) {
		p->flow.sport = known->sport;
		p->flow.dport = known->dport;
	}
}
