/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Garbage collection: counts anew what pods have (shares.h). Before it goes through the
 * entries, a pass notes each count in `begun`; while it does, it counts in `found`; then it
 * adds the difference of the two. What programs create meanwhile they add themselves: an
 * entry that the pass has found too counts twice, until the next pass. */

#pragma once

#include "gc.h"

/* Adds to what a pass has found. */
#define FOUND(map, key, n)                                                                                             \
	({                                                                                                             \
		struct share_value *value_of_share = bpf_map_lookup_elem(&map, key);                                   \
		struct share_value first_of_share = {.found = 1};                                                      \
                                                                                                                       \
		if (value_of_share)                                                                                    \
			value_of_share->found += n;                                                                    \
		else                                                                                                   \
			bpf_map_update_elem(&map, key, &first_of_share, BPF_NOEXIST);                                  \
	})

/* Counts a connection, or takes one away that the pass has removed. */
SUBPROGRAM int recount_connection(const struct tuple *flow, __u32 how, __u32 flags, int n)
{
	struct share_key key;

	if (!flow || run.step != GC_COUNT)
		return 0;
	connection_share(&key, flow, how, flags);
	if (!no_address(&key.pod))
		FOUND(sluice_shares, &key, n);
	return 0;
}

/* Counts the record of a translation to or from an address, and with the one of the pod's
 * packets the port that they leave with. */
SUBPROGRAM int recount_translation(const struct tuple *t, __u32 flags, const struct address *to, int n)
{
	const struct address *pod, *egress;
	struct share_key share;
	struct port_key key;

	if (!t || !to || run.step != GC_COUNT)
		return 0;
	pod = flags & TUPLE_IN ? to : &t->saddr;
	egress = flags & TUPLE_IN ? &t->daddr : to;
	translation_share(&share, pod, t->family);
	FOUND(sluice_shares, &share, n);
	if (flags & TUPLE_IN || same_address(pod, egress)) /* the host's own */
		return 0;
	port_share(&key, t, egress, NULL);
	FOUND(sluice_ports, &key, n);
	key.pod = *pod;
	FOUND(sluice_ports, &key, n);
	return 0;
}

/* The destinations to which the largest part of the ports is taken. */
#define GC_FULLEST 16

struct gc_fullest {
	struct port_key key;
	__u32 used;
	__u32 room;
};

struct gc_fullest fullest[GC_FULLEST];

/* Puts a count of ports among the fullest, if it is one. */
static __always_inline void note_fullest(const struct port_key *key, const struct share_value *v)
{
	struct gc_fullest *least = &fullest[0];

	if (!v->room)
		return;
	for (int i = 1; i < GC_FULLEST; i++) {
		struct gc_fullest *other = &fullest[i];

		if (!other->room || (least->room && (__u64)other->used * least->room < (__u64)least->used * other->room))
			least = other;
	}
	if (least->room && (__u64)v->used * least->room <= (__u64)least->used * v->room)
		return;
	least->key = *key;
	least->used = v->used;
	least->room = v->room;
}

/* Does one step with a count. Returns whether nothing is left of it. */
static __always_inline bool recount(struct share_value *v)
{
	if (run.step == GC_BEGIN_COUNT) {
		v->found = 0;
		v->begun = v->used;
		return false;
	}
	__sync_fetch_and_add(&v->used, v->found - v->begun);
	v->found = v->begun = 0;
	return !v->used;
}

static __always_inline void recount_share(void *map, const void *in_map, struct share_value *v)
{
	struct share_key key;

	__builtin_memcpy(&key, in_map, sizeof(key));
	counts.scanned++;
	if (no_address(&key.pod))
		return; /* of all entries: the agent asks the kernel */
	if (recount(v))
		bpf_map_delete_elem(map, &key);
}

static __always_inline void recount_ports(void *map, const void *in_map, struct share_value *v)
{
	struct port_key key;

	__builtin_memcpy(&key, in_map, sizeof(key));
	counts.scanned++;
	if (recount(v))
		bpf_map_delete_elem(map, &key);
	else if (run.step == GC_END_COUNT && no_address(&key.pod))
		note_fullest(&key, v);
}
